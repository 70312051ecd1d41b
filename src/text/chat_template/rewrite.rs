//! Compiles a template so that everything that can make it large or slow passes a guard first.
//!
//! The template engine limits instructions (fuel), but one instruction may double a string or walk a value that
//! contains another a million times. A call to a guard is put before or after each such instruction.

use super::meter::{
    BEGUN, BUILT, CONCAT, GROW, ITEM, ITER, MACRO, MADE, METHOD, NUMBERS, ORDER, OWNED, THROUGH, UNDONE,
};
use super::methods;
use super::remainder::REMAINDER;
use super::slices::SLICE;
use super::spelling::spelled;
use super::syntax_error;
use super::variadic::Macros;
use crate::text::TextError;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::mem::discriminant;

/// A compiled and guarded template: its instructions and those of its blocks.
pub(super) type Compiled<'a> = (Instructions<'a>, BTreeMap<&'a str, Instructions<'a>>);

/// Operators in one tag, and `elif` branches. The engine's compiler recurses as deep as a chain such as `a + a + …` is
/// long, and checks only the depth of brackets and blocks.
const CHAIN: usize = 500;
/// Brackets open at once.
const BRACKETS: usize = 100;
/// A variable that is 1.
pub(super) const ONE: &str = "__one";

/// The white space rules that model authors write for.
fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

/// `source` in a form that is safe to compile: without endless chains of operators or branches, and with each product
/// of constants left to the rendering, where its size is checked, by multiplying with a variable that is 1. Signs that change
/// nothing, which the engine does not know, are left out, macros have parameters for what is beyond theirs, and
/// constants are left to the rendering, too, where they are compared with what is more or less.
///
/// # Errors
/// `TemplateSyntax` for a chain that is too long.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other tokens leave the counts alone")]
pub(super) fn harden(source: &str) -> Result<String, TextError> {
    check_size(source)?;
    let syntax = syntax().map_err(syntax_error)?;
    let source = &spelled(source, syntax.clone(), &format!("not {ONE}"));
    let mut hardened = String::with_capacity(source.len());
    let (mut copied, mut after_operand) = (0, false);
    let mut compared = Compared::default();
    let (mut operators, mut brackets, mut branches) = (0, 0_usize, 0);
    let mut macros = Macros::default();
    // Where the lexer fails the parser does too, and says what is wrong.
    for (token, span) in tokenize(source, false, syntax.clone()).map_while(Result::ok) {
        macros.see(&token, span.start_offset as usize);
    }
    let mut insertions = macros.insertions().into_iter().peekable();
    for (token, span) in tokenize(source, false, syntax).map_while(Result::ok) {
        match token {
            Token::VariableStart | Token::BlockStart => (operators, brackets) = (0, 0),
            Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => brackets += 1,
            Token::BracketClose | Token::ParenClose | Token::BraceClose => brackets = brackets.saturating_sub(1),
            Token::Ident("elif") => branches += 1,
            _ => {}
        }
        operators += usize::from(nests(&token, after_operand));
        if operators > CHAIN || branches > CHAIN || brackets > BRACKETS {
            let what = format!("more than {CHAIN} operators or {BRACKETS} open brackets in a tag, or {CHAIN} branches");
            return Err(TextError::TemplateSyntax { line: span.start_line.into(), what });
        }
        let start = span.start_offset as usize;
        while let Some((at, text)) = insertions.next_if(|(at, _)| *at <= start) {
            hardened.push_str(&source[copied..at]);
            hardened.push_str(&text);
            copied = at;
        }
        if matches!(token, Token::Plus) && !after_operand {
            hardened.push_str(&source[copied..start]);
            copied = start + 1;
        }
        // A star that no operand precedes spreads a list over arguments.
        if matches!(token, Token::Mul) && after_operand {
            hardened.push_str(&source[copied..start]);
            hardened.push('*');
            hardened.push_str(ONE);
            copied = start;
        }
        if let Some(factor) = compared.before(&token) {
            hardened.push_str(&source[copied..start]);
            hardened.push_str(&factor);
            copied = start;
        }
        after_operand = is_operand_end(&token);
    }
    hardened.push_str(&source[copied..]);
    Ok(hardened)
}

/// The engine counts lines and columns in 16 bits.
fn check_size(source: &str) -> Result<(), TextError> {
    for (line, text) in source.split('\n').enumerate() {
        if text.len() > LINE_BYTES || line >= LINES {
            let what = format!("expected at most {LINES} lines of {LINE_BYTES} bytes");
            return Err(TextError::TemplateSyntax { line: line + 1, what });
        }
    }
    Ok(())
}

const LINES: usize = 60_000;
const LINE_BYTES: usize = 60_000;

const OPERATOR_WORDS: [&str; 6] = ["and", "or", "not", "in", "is", "if"];

/// Whether a token makes the expression it is in one level deeper without the parser noticing.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other tokens are operators")]
fn nests(token: &Token<'_>, after_operand: bool) -> bool {
    match token {
        Token::TemplateData(_) | Token::VariableStart | Token::VariableEnd | Token::BlockStart | Token::BlockEnd => {
            false
        }
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => false,
        Token::Comma | Token::Colon | Token::Assign => false,
        Token::BracketClose | Token::ParenClose | Token::BraceClose => false,
        Token::BracketOpen | Token::ParenOpen | Token::BraceOpen => after_operand,
        Token::Ident(word) => OPERATOR_WORDS.contains(word),
        _ => true,
    }
}

/// The last token as far as comparisons of sizes go. The engine orders constants before it renders, where it finds no bool
/// among numbers and nobody refuses two kinds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Compared {
    #[default]
    Other,
    Constant,
    /// It is none, which nothing can be multiplied with.
    None,
    NoneBehindSign,
    /// What it closes may be a constant.
    Bracket,
    Sign,
    SignBehindBracket,
}

impl Compared {
    /// What has to stand before a token, so that one side of a comparison is no constant.
    fn before(&mut self, token: &Token<'_>) -> Option<String> {
        let (is_truth, is_literal, is_sign) = (is_truth(token), is_literal(token), is_order(token));
        let is_none = matches!(token, Token::Ident("none" | "None"));
        let factor = match self {
            Compared::None if is_sign => Some(WHATEVER.into()),
            Compared::NoneBehindSign => Some(WHATEVER.into()),
            Compared::Constant if is_sign => Some(format!("*{ONE}")),
            Compared::Sign if is_truth => Some(format!("{ONE}*")),
            Compared::SignBehindBracket if is_truth || is_literal => Some(format!("{ONE}*")),
            Compared::None
            | Compared::Constant
            | Compared::Sign
            | Compared::SignBehindBracket
            | Compared::Bracket
            | Compared::Other => None,
        };
        let is_bracket = matches!(token, Token::BracketClose | Token::ParenClose | Token::BraceClose);
        *self = match (is_sign, *self) {
            (true, Compared::Bracket) => Compared::SignBehindBracket,
            (true, _) => Compared::Sign,
            (false, Compared::Sign | Compared::SignBehindBracket) if is_none => Compared::NoneBehindSign,
            (false, _) if is_none => Compared::None,
            (false, _) if is_truth || is_literal => Compared::Constant,
            (false, _) if is_bracket => Compared::Bracket,
            (false, _) => Compared::Other,
        };
        factor
    }
}

/// What leaves a value as it is, which the engine does not know before it renders.
const WHATEVER: &str = "|default(0)";

fn is_literal(token: &Token<'_>) -> bool {
    matches!(token, Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_))
}

fn is_truth(token: &Token<'_>) -> bool {
    matches!(token, Token::Ident("true" | "True" | "false" | "False"))
}

/// Whether a token compares sizes.
fn is_order(token: &Token<'_>) -> bool {
    matches!(token, Token::Lt | Token::Lte | Token::Gt | Token::Gte)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "no other token can end an operand")]
fn is_operand_end(token: &Token<'_>) -> bool {
    match token {
        Token::Str(_) | Token::String(_) | Token::Int(_) | Token::Int128(_) | Token::Float(_) => true,
        Token::BracketClose | Token::ParenClose | Token::BraceClose => true,
        Token::Ident(word) => !OPERATOR_WORDS.contains(word),
        _ => false,
    }
}

/// Compiles a hardened source.
pub(super) fn compile(source: &str) -> Result<Compiled<'_>, TextError> {
    let template = syntax().and_then(|syntax| parse(source, NAME, syntax)).map_err(syntax_error)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&template);
    let (instructions, blocks) = generator.finish();
    for part in blocks.values().chain([&instructions]) {
        refuse_recursive_else(part)?;
    }
    let guarded = guard(&instructions, source);
    Ok((guarded, blocks.iter().map(|(name, block)| (*name, guard(block, source))).collect()))
}

const NAME: &str = "chat_template";

fn guard<'a>(original: &Instructions<'a>, source: &'a str) -> Instructions<'a> {
    let mut guarded = Instructions::new(NAME, source);
    let mut moved = Vec::new();
    let mut at = 0;
    let (begins, ends) = with_else(original);
    let links = ordering_links();
    while let Some(instruction) = original.get(at) {
        let mut first = None;
        let before = at.checked_sub(1).and_then(|before| original.get(before));
        let mut parts =
            if is_one_of(&links, instruction) { ordered(instruction) } else { guard_one(instruction, before) };
        if begins.contains(&at) {
            parts.extend(tell(BEGUN));
        }
        if ends.contains(&at) {
            parts.splice(..0, tell(THROUGH));
        }
        for instruction in parts {
            let position = match (original.get_span(at), original.get_line(at)) {
                (Some(span), _) => guarded.add_with_span(instruction, span),
                (None, Some(line)) => guarded.add_with_line(instruction, line as u16),
                (None, None) => guarded.add(instruction),
            };
            first.get_or_insert(position);
        }
        moved.extend(first);
        at += 1;
    }
    let end = len(&guarded);
    for at in 0..end {
        let target = guarded.get_mut(at).and_then(jump_target);
        if let Some(target) = target {
            *target = moved.get(*target as usize).copied().unwrap_or(end);
        }
    }
    guarded
}

/// The engine leaves a loop that was called again before its `else`, and a value that nobody takes.
fn refuse_recursive_else(instructions: &Instructions<'_>) -> Result<(), TextError> {
    for at in 0..len(instructions) {
        if let (Some(Instruction::PushLoop(flags)), Some(Instruction::Iterate(end))) =
            (instructions.get(at), instructions.get(at + 1))
            && flags & RECURSIVE != 0
            && matches!(instructions.get(*end), Some(Instruction::PushDidNotIterate))
        {
            let what = "a recursive loop with an else, expected one of the two".into();
            return Err(TextError::TemplateSyntax { line: instructions.get_line(at).unwrap_or(0), what });
        }
    }
    Ok(())
}

/// The flag of a loop that may be called.
const RECURSIVE: u8 = 2;

/// Tells the meter how far a loop is that has an `else`. As in Python, that is for a loop none of whose iterations came to
/// its end, be it that there was none.
fn tell(guard: &'static str) -> [Instruction<'static>; 2] {
    [Instruction::CallFunction(guard, Some(0)), Instruction::DiscardTop]
}

/// Where the loops that have an `else` begin, and the jumps back at their ends.
fn with_else(instructions: &Instructions<'_>) -> (BTreeSet<u32>, BTreeSet<u32>) {
    let (mut begins, mut ends) = (BTreeSet::new(), BTreeSet::new());
    for at in 0..len(instructions) {
        // The engine's own question for an `else` is where its loop ends.
        if let Some(Instruction::Iterate(end)) = instructions.get(at)
            && matches!(instructions.get(*end), Some(Instruction::PushDidNotIterate))
        {
            begins.extend(at.checked_sub(1));
            ends.extend(end.checked_sub(1));
        }
    }
    (begins, ends)
}

fn len(instructions: &Instructions<'_>) -> u32 {
    (0..).find(|&at| instructions.get(at).is_none()).unwrap_or(0)
}

/// What an instruction becomes, with the one before it. A jump to it goes to the first of these.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other instructions neither grow nor build a value")]
fn guard_one<'a>(instruction: &Instruction<'a>, before: Option<&Instruction<'a>>) -> Vec<Instruction<'a>> {
    use Instruction as I;
    let call = |guard, arguments| I::CallFunction(guard, Some(arguments));
    let original = instruction.clone();
    match instruction {
        // Raw text bypasses the formatter, which counts what is written.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        // The guard gives both operands back, the right one on top.
        I::StringConcat => vec![call(CONCAT, 2), I::UnpackList(2), original, call(MADE, 1)],
        I::Sub | I::Div | I::IntDiv | I::Pow => vec![call(NUMBERS, 2), I::UnpackList(2), original],
        I::Lt | I::Lte | I::Gt | I::Gte => ordered(instruction),
        I::Neg => vec![call(NUMBERS, 1), original],
        I::Add | I::Mul => vec![call(GROW, 2), I::UnpackList(2), original, call(MADE, 1)],
        I::GetAttr(name) if methods::is_method(name) => {
            vec![I::LoadConst(Value::from(*name)), call(METHOD, 2), original]
        }
        I::GetItem if matches!(before, Some(I::LoadConst(name)) if name.as_str().is_some_and(methods::is_method)) => {
            vec![call(ITEM, 2), I::UnpackList(2), original]
        }
        I::PushDidNotIterate => vec![call(UNDONE, 0)],
        I::BuildMacro(..) => vec![original, call(MACRO, 1)],
        I::Rem => vec![call(REMAINDER, 2), call(MADE, 1)],
        I::PushLoop(_) => vec![call(ITER, 1), original],
        I::BuildMap(_) | I::BuildKwargs(_) | I::MergeKwargs(_) | I::BuildList(_) | I::BuildTuple(_) => {
            vec![original, call(BUILT, 1)]
        }
        // The namespace lies on top of the value.
        I::SetAttr(_) => vec![I::Swap, call(OWNED, 1), I::Swap, original],
        I::Slice => vec![call(SLICE, 4), call(MADE, 1)],
        I::ApplyFilter(..) | I::CallMethod(..) | I::CallFunction(..) | I::CallObject(_) => {
            vec![original, call(MADE, 1)]
        }
        _ => vec![original],
    }
}

/// A comparison of sizes behind its guard.
fn ordered<'a>(comparison: &Instruction<'a>) -> Vec<Instruction<'a>> {
    vec![Instruction::CallFunction(ORDER, Some(2)), Instruction::UnpackList(2), comparison.clone()]
}

/// The comparisons of sizes that another one follows, as in `1 < x < 3`: the engine has one instruction for those, and does
/// not give the type away that says which one it is.
fn ordering_links() -> Vec<Instruction<'static>> {
    let source = "{{ x < x <= x > x >= x < x }}";
    let Ok(template) = syntax().and_then(|syntax| parse(source, NAME, syntax)) else { return Vec::new() };
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&template);
    let (instructions, _) = generator.finish();
    let is_link = |instruction: &&Instruction<'_>| matches!(instruction, Instruction::CompareAndPreserve(_));
    (0..len(&instructions)).filter_map(|at| instructions.get(at)).filter(is_link).cloned().collect()
}

/// Whether an instruction is one of these links.
fn is_one_of(links: &[Instruction<'_>], instruction: &Instruction<'_>) -> bool {
    let Instruction::CompareAndPreserve(kind) = instruction else { return false };
    let is_same = |link: &Instruction<'_>| matches!(link, Instruction::CompareAndPreserve(known) if discriminant(known) == discriminant(kind));
    links.iter().any(is_same)
}

#[allow(clippy::wildcard_enum_match_arm, reason = "all other instructions go on to the next")]
fn jump_target<'i>(instruction: &'i mut Instruction<'_>) -> Option<&'i mut u32> {
    use Instruction as I;
    match instruction {
        I::Iterate(target)
        | I::Jump(target)
        | I::JumpIfFalse(target)
        | I::JumpIfFalseOrPop(target)
        | I::JumpIfTrueOrPop(target)
        | I::BuildMacro(_, target, _) => Some(target),
        _ => None,
    }
}
