//! Tells from the source of a chat template how its model writes calls and reasoning.

use super::{
    form::{self, Form, JsonForm},
    think::Tags,
};

/// The form of calls, told from the markers a template names. The first that fits counts: templates name those of others
/// only where they share them, so the more particular stand first.
pub(super) fn form(source: &str) -> Option<Form> {
    let has = |text: &str| source.contains(text);
    let json = |begin, end, list| {
        let end = if has(end) { end } else { "" };
        Some(Form::Json(JsonForm { begin, end, list, arguments_first: arguments_first(source) }))
    };
    match () {
        () if has("<|channel|>") && has("<|message|>") => Some(Form::Harmony),
        () if has(form::DEEPSEEK_V3.call) && has("```json") => Some(Form::Section(&form::DEEPSEEK_V3)),
        () if has(form::DEEPSEEK_V3.call) => Some(Form::Section(&form::DEEPSEEK_V31)),
        () if has(form::KIMI.call) => Some(Form::Section(&form::KIMI)),
        // The first template of LFM2 names the markers of tools only, and leaves calls to the caller.
        () if has(form::LFM) || has("<|tool_list_start|>") => Some(Form::Python),
        () if has(form::MISTRAL) => Some(Form::Mistral { named: has(form::MISTRAL_ARGUMENTS) }),
        () if has(form::FUNCTION) && has("<parameter=") => Some(Form::Xml),
        () if has("<TOOLCALL>") => json("<TOOLCALL>", "</TOOLCALL>", true),
        () if has("<|tool_call|>") => json("<|tool_call|>", "<|/tool_call|>", true),
        // Others put something else than JSON between the same markers.
        () if has(form::TOOL_CALL) && !has("<arg_key>") => json(form::TOOL_CALL, "</tool_call>", false),
        () if has(form::PYTHON_TAG) || (has("ipython") && has("\"parameters\": ")) => Some(Form::Bare),
        () => None,
    }
}

/// Whether the example of a call has its arguments before its name.
fn arguments_first(source: &str) -> bool {
    source.replace('\\', "").contains("{\"arguments\":")
}

/// The tags around reasoning.
pub(super) fn tags(source: &str) -> Option<Tags> {
    const KNOWN: [Tags; 3] = [
        Tags { open: "<think>", close: "</think>" },
        Tags { open: "[THINK]", close: "[/THINK]" },
        Tags { open: "<seed:think>", close: "</seed:think>" },
    ];
    KNOWN.into_iter().find(|tags| source.contains(tags.open) || source.contains(tags.close))
}

/// Whether the template names tools at all.
pub(super) fn names_tools(source: &str) -> bool {
    source.contains("tools")
}

/// Whether the template writes calls of earlier answers.
pub(super) fn writes_calls(source: &str) -> bool {
    source.contains("tool_calls")
}

/// Whether reasoning of earlier answers is read from `thinking`, as LFM2.5 does it.
pub(super) fn reads_thinking(source: &str) -> bool {
    let plain = plain(source);
    !plain.contains("reasoning_content") && (plain.contains("message.thinking") || plain.contains("messagethinking"))
}

/// Whether the template refuses ids of calls that have not nine characters.
pub(super) fn wants_short_ids(source: &str) -> bool {
    source.contains("length != 9") || source.contains("length == 9")
}

/// Whether an answer of nothing but calls has to have no content: the template takes an empty text for one.
pub(super) fn wants_no_content(source: &str) -> bool {
    let plain = plain(source);
    source.contains(form::DEEPSEEK_V3.call) && (plain.contains("contentisnone") || plain.contains("contentisnotnone"))
}

/// Whether the template goes through the parts of a content itself: it writes them one behind the other.
pub(super) fn takes_parts(source: &str) -> bool {
    let plain = plain(source);
    let mut statements = plain.split("{%").filter_map(|rest| rest.split("%}").next());
    statements.any(|statement| {
        let statement = statement.trim_matches(['-', '+']);
        let Some(of) = statement.strip_prefix("for") else { return false };
        let mut behind = of.match_indices("content").map(|(at, word)| &of[at + word.len()..]);
        behind.any(|rest| rest.is_empty() || rest.starts_with('|') || rest.starts_with("if"))
    })
}

/// The source without white space, quotes and brackets.
fn plain(source: &str) -> String {
    source.chars().filter(|c| !c.is_whitespace() && !"\"'[]()".contains(*c)).collect()
}

/// Whether the arguments of earlier calls have to be text: they are put into the prompt as they are and not as JSON,
/// and nobody looks into them.
pub(super) fn wants_text_arguments(source: &str) -> bool {
    let plain = plain(source);
    let mut uses = plain.match_indices("arguments").map(|(at, word)| &plain[at + word.len()..]);
    let looked_into = uses.any(|rest| {
        ["|tojson", "|items", ".items", "ismapping", "isnotmapping", "isstring", "isnotstring"]
            .iter()
            .any(|filter| rest.starts_with(filter))
    });
    let whole =
        ["function|tojson", "tool_call|tojson", "tool_calls|tojson"].iter().any(|filter| plain.contains(filter));
    let added = plain.contains("arguments+") || plain.contains("arguments}}") || plain.contains("arguments-}}");
    added && !looked_into && !whole
}
