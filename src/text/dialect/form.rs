//! The forms of tool calls as data: which texts begin and end them, and how a whole one is written.

use super::{
    CallArguments, CallForm, CallFrame,
    call_form::each,
    python::Literals,
    schema::Tool,
    xml::{FUNCTION_END, Texts},
};
use serde_json::Value;

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// `{"name": …, "arguments": …}` between markers, one or a list of them. Hermes, Qwen, Granite, Nemotron, Phi.
    Json(JsonForm),
    /// `{"name": …, "parameters": …}` as the whole answer. Llama.
    Bare,
    /// `[TOOL_CALLS]`, then a list of objects or, if `named`, `name[ARGS]{…}`. Mistral.
    Mistral {
        /// The newer of the two.
        named: bool,
    },
    /// `<function=name>` with one `<parameter=…>` each. Qwen3-Coder, Qwen 3.5, Nemotron 3.
    Xml,
    /// A section of calls, each a header and JSON. Kimi, DeepSeek.
    Section(&'static Section),
    /// `[name(argument="value")]` between markers. LFM2.
    Python,
    /// Messages to `functions.name` in a channel. gpt-oss.
    Harmony,
}

/// JSON objects between two markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JsonForm {
    pub(super) begin: &'static str,
    /// Empty if nothing ends calls.
    pub(super) end: &'static str,
    /// Whether calls stand in a list.
    pub(super) list: bool,
    /// Whether the template's example has the arguments before the name.
    pub(super) arguments_first: bool,
}

/// The markers of a section of calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) begin: &'static str,
    pub(super) call: &'static str,
    pub(super) separator: &'static str,
    pub(super) call_end: &'static str,
    pub(super) end: &'static str,
    pub(super) header: HeaderStyle,
}

/// What stands between a call's marker and its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderStyle {
    /// `functions.name:0`, which is the id as well, then the separator.
    Numbered,
    /// `name`, then the separator.
    Name,
    /// `function`, the separator, the name, and the arguments in a fenced block.
    Fenced,
}

pub(super) const KIMI: Section = Section {
    begin: "<|tool_calls_section_begin|>",
    call: "<|tool_call_begin|>",
    separator: "<|tool_call_argument_begin|>",
    call_end: "<|tool_call_end|>",
    end: "<|tool_calls_section_end|>",
    header: HeaderStyle::Numbered,
};

pub(super) const DEEPSEEK_V31: Section = Section { header: HeaderStyle::Name, ..DEEPSEEK_V3 };

pub(super) const DEEPSEEK_V3: Section = Section {
    begin: "<｜tool▁calls▁begin｜>",
    call: "<｜tool▁call▁begin｜>",
    separator: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
    end: "<｜tool▁calls▁end｜>",
    header: HeaderStyle::Fenced,
};

/// A fence before the marker that ends a call.
const FENCED_END: &str = "```<｜tool▁call▁end｜>";
pub(super) const FENCE: &str = "```json\n";
pub(super) const TOOL_CALL: &str = "<tool_call>";
const TOOL_CALL_END: &str = "</tool_call>";
pub(super) const FUNCTION: &str = "<function=";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
pub(super) const MISTRAL: &str = "[TOOL_CALLS]";
pub(super) const MISTRAL_ARGUMENTS: &str = "[ARGS]";
pub(super) const MISTRAL_ID: &str = "[CALL_ID]";
pub(super) const LFM: &str = "<|tool_call_start|>";
pub(super) const LFM_END: &str = "<|tool_call_end|>";

impl Form {
    /// Texts with which calls begin in the middle of an answer.
    pub(super) fn begins(self) -> Vec<&'static str> {
        match self {
            Form::Json(form) => vec![form.begin],
            Form::Bare => vec![PYTHON_TAG],
            Form::Mistral { .. } => vec![MISTRAL],
            // Models leave the outer marker out at times.
            Form::Xml => vec![TOOL_CALL, FUNCTION],
            Form::Section(section) => vec![section.begin, section.call],
            Form::Python => vec![LFM],
            Form::Harmony => Vec::new(),
        }
    }

    /// Texts that may follow a call and belong to it.
    pub(super) fn ends(self) -> Vec<&'static str> {
        match self {
            Form::Json(JsonForm { end: "", .. }) | Form::Mistral { .. } | Form::Harmony => Vec::new(),
            Form::Json(form) => vec![form.end],
            Form::Bare => vec![";"],
            Form::Xml => vec![TOOL_CALL_END],
            Form::Section(section) if section.header == HeaderStyle::Fenced => {
                vec![FENCED_END, section.call_end, section.end]
            }
            Form::Section(section) => vec![section.call_end, section.end],
            Form::Python => vec![LFM_END],
        }
    }

    /// Texts that end arguments that are no JSON. Not what may stand in any text.
    pub(super) fn broken_ends(self) -> Vec<&'static str> {
        if self == Form::Bare { Vec::new() } else { self.ends() }
    }

    /// All texts of the form that may be control tokens.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        match *self {
            Form::Json(form) => vec![form.begin, form.end].into_iter().filter(|text| !text.is_empty()).collect(),
            Form::Bare => vec![PYTHON_TAG],
            Form::Mistral { .. } => vec![MISTRAL, MISTRAL_ARGUMENTS, MISTRAL_ID],
            Form::Xml => vec![TOOL_CALL, TOOL_CALL_END],
            Form::Section(section) => {
                vec![section.begin, section.call, section.separator, section.call_end, section.end]
            }
            Form::Python => vec![LFM, LFM_END],
            Form::Harmony => super::harmony::MARKERS.to_vec(),
        }
    }

    /// The text any call begins with.
    pub(super) fn start(self) -> Option<&'static str> {
        match self {
            Form::Json(form) => Some(form.begin),
            Form::Bare => None,
            Form::Mistral { .. } => Some(MISTRAL),
            Form::Xml => Some(TOOL_CALL),
            Form::Section(section) => Some(section.begin),
            Form::Python => Some(LFM),
            Form::Harmony => Some(super::harmony::CALL_START),
        }
    }

    /// What stands around calls: markers and brackets, where a list or a section holds them together.
    pub(super) fn frame(self) -> CallFrame {
        match self {
            Form::Json(JsonForm { begin, end, list: true, .. }) => list_frame(begin, end),
            Form::Json(JsonForm { list: false, .. }) | Form::Xml => {
                CallFrame { between: Some("\n"), ..CallFrame::default() }
            }
            Form::Bare | Form::Mistral { named: true } => CallFrame { between: Some(""), ..CallFrame::default() },
            Form::Mistral { named: false } => list_frame(MISTRAL, ""),
            Form::Section(Section { begin, end, .. }) => {
                CallFrame { begin: (*begin).into(), between: Some(""), end: (*end).into() }
            }
            Form::Python => list_frame(LFM, LFM_END),
            Form::Harmony => CallFrame::default(),
        }
    }

    /// A call of a tool as the model writes it; `None` if its arguments cannot be written so.
    pub(super) fn call(self, tool: &Tool) -> Option<CallForm> {
        let name = tool.name.as_str();
        let quoted = Value::from(name);
        let mut arguments = CallArguments::Whole(tool.parameters());
        let mut numbered = None;
        let (begin, end) = match self {
            Form::Json(form) => json_call(form, &quoted),
            Form::Bare => (format!("{{\"name\": {quoted}, \"parameters\": "), "}".into()),
            Form::Mistral { named: true } => (format!("{MISTRAL}{name}{MISTRAL_ARGUMENTS}"), String::new()),
            Form::Mistral { named: false } => (format!("{{\"name\": {quoted}, \"arguments\": "), "}".into()),
            Form::Section(section) => {
                numbered = Some(section.separator).filter(|_| section.header == HeaderStyle::Numbered);
                section_call(section, name)
            }
            Form::Harmony => {
                let header = format!("{}{name} <|constrain|>json<|message|>", super::harmony::CALL_START);
                (header, super::harmony::CALL_END.into())
            }
            Form::Xml => {
                arguments = CallArguments::Each { list: each(tool, &Texts)?, between: "" };
                (format!("{TOOL_CALL}\n{FUNCTION}{name}>\n"), format!("{FUNCTION_END}\n{TOOL_CALL_END}"))
            }
            Form::Python => {
                arguments = CallArguments::Each { list: each(tool, &Literals)?, between: ", " };
                (format!("{name}("), ")".into())
            }
        };
        Some(CallForm { begin, numbered, arguments, end })
    }
}

/// A list of calls between two markers. Lists follow their marker on the same line.
fn list_frame(begin: &str, end: &str) -> CallFrame {
    CallFrame { begin: format!("{begin}["), between: Some(", "), end: format!("]{end}") }
}

fn json_call(form: JsonForm, name: &Value) -> (String, String) {
    let JsonForm { begin, end, list, arguments_first } = form;
    let (open, close) = match (list, end) {
        (true, _) => (String::new(), String::new()),
        (false, "") => (begin.into(), String::new()),
        (false, _) => (format!("{begin}\n"), format!("\n{end}")),
    };
    if arguments_first {
        return (format!("{open}{{\"arguments\": "), format!(", \"name\": {name}}}{close}"));
    }
    (format!("{open}{{\"name\": {name}, \"arguments\": "), format!("}}{close}"))
}

fn section_call(section: &Section, name: &str) -> (String, String) {
    let Section { call, separator, call_end, header, .. } = section;
    let (header, fence) = match header {
        HeaderStyle::Numbered => (format!("functions.{name}:"), ""),
        HeaderStyle::Name => (format!("{name}{separator}"), ""),
        HeaderStyle::Fenced => (format!("function{separator}{name}\n{FENCE}"), "\n```"),
    };
    (format!("{call}{header}"), format!("{fence}{call_end}"))
}
