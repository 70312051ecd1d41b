//! Compiles a template so that everything that can make it large or slow passes a guard first.
//!
//! The template engine limits instructions (fuel), but one instruction may double a string or walk a value that
//! contains itself a million times. A call to a guard is put before or after each such instruction.

use super::meter::{BUILT, GROW, ITER, MADE, OWNED};
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, Value};
use std::collections::BTreeMap;

/// A compiled and guarded template: its instructions and those of its blocks.
pub(super) type Compiled<'a> = (Instructions<'a>, BTreeMap<&'a str, Instructions<'a>>);

/// Compiles `source` with the white space rules that model authors write for.
pub(super) fn compile(source: &str) -> Result<Compiled<'_>, Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let template = parse(source, NAME, syntax)?;
    let mut generator = CodeGenerator::new(NAME, source);
    generator.compile_stmt(&template);
    let (instructions, blocks) = generator.finish();
    let guarded = guard(&instructions, source);
    Ok((guarded, blocks.iter().map(|(name, block)| (*name, guard(block, source))).collect()))
}

const NAME: &str = "chat_template";

fn guard<'a>(original: &Instructions<'a>, source: &'a str) -> Instructions<'a> {
    let mut guarded = Instructions::new(NAME, source);
    let mut moved = Vec::new();
    let mut at = 0;
    while let Some(instruction) = original.get(at) {
        let mut first = None;
        for instruction in guard_one(instruction) {
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
    let end = guarded_len(&guarded);
    for at in 0..end {
        let target = guarded.get_mut(at).and_then(jump_target);
        if let Some(target) = target {
            *target = moved.get(*target as usize).copied().unwrap_or(end);
        }
    }
    guarded
}

fn guarded_len(instructions: &Instructions<'_>) -> u32 {
    (0..).find(|&at| instructions.get(at).is_none()).unwrap_or(0)
}

/// What an instruction becomes. A jump to it goes to the first of these.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other instructions neither grow nor build a value")]
fn guard_one<'a>(instruction: &Instruction<'a>) -> Vec<Instruction<'a>> {
    use Instruction as I;
    let call = |guard, arguments| I::CallFunction(guard, Some(arguments));
    let original = instruction.clone();
    match instruction {
        // Raw text bypasses the formatter, which counts what is written.
        I::EmitRaw(text) => vec![I::LoadConst(Value::from(*text)), I::Emit],
        // The guard gives both operands back, the right one on top.
        I::StringConcat | I::Add | I::Mul => {
            vec![call(GROW, 2), I::UnpackList(2), original, call(MADE, 1)]
        }
        I::PushLoop(_) => vec![call(ITER, 1), original],
        I::BuildMap(_) | I::BuildKwargs(_) | I::MergeKwargs(_) | I::BuildList(_) | I::BuildTuple(_) => {
            vec![original, call(BUILT, 1)]
        }
        // The namespace lies on top of the value.
        I::SetAttr(_) => vec![I::Swap, call(OWNED, 1), I::Swap, original],
        I::Slice | I::ApplyFilter(..) | I::CallMethod(..) | I::CallFunction(..) | I::CallObject(_) => {
            vec![original, call(MADE, 1)]
        }
        _ => vec![original],
    }
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
