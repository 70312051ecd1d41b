//! The prompt of `/infill`, as models that fill in were trained to read it.

use crate::{
    server::{ApiError, Fields, served::Served},
    text::{Bos, Special, Tokenizer},
};

/// What stands before the files of a project, and before the one that is filled in, where a model has tokens for that.
const PROJECT: &str = "myproject\n";
const FILE: &str = "filename\n";
/// What stands before each file where it has none.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";

/// The texts of a request.
struct Texts<'a> {
    before: &'a str,
    after: &'a str,
    /// How what is between them begins.
    begun: &'a str,
    /// Names and texts of other files.
    files: Vec<(&'a str, &'a str)>,
}

/// The prompt of a request.
pub(super) fn prompt(fields: &Fields<'_>, served: &Served) -> Result<Vec<u32>, ApiError> {
    let mut files = Vec::new();
    for (number, file) in fields.list("input_extra")?.into_iter().flatten().enumerate() {
        let file = Fields::within(file, &fields.name(&format!("input_extra[{number}]")))?;
        files.push((file.text("filename")?.unwrap_or("tmp"), file.need_text("text")?));
    }
    let (before, after) = (fields.need_text("input_prefix")?, fields.need_text("input_suffix")?);
    let texts = Texts { before, after, begun: fields.text("prompt")?.unwrap_or_default(), files };
    tokens(&served.tokenizer, &|text: &str, bos| served.tokens(text, Special::Literal, bos), &texts)
        .ok_or_else(|| ApiError::bad("this model has no tokens for filling in, expected one that has them, for code"))
}

fn tokens(tokenizer: &Tokenizer, encode: &dyn Fn(&str, Bos) -> Vec<u32>, texts: &Texts<'_>) -> Option<Vec<u32>> {
    let roles = tokenizer.roles();
    // Of an empty text the one token in front: nothing is to end here.
    let mut all: Vec<u32> = encode("", Bos::Add).into_iter().take(1).filter(|id| Some(*id) == roles.bos).collect();
    if let Some(project) = roles.fim_repo {
        all.push(project);
        all.extend(encode(PROJECT, Bos::Omit));
    }
    for (name, text) in &texts.files {
        match roles.fim_separator {
            Some(separator) => {
                all.push(separator);
                all.extend(encode(&format!("{name}\n"), Bos::Omit));
            }
            None => all.extend(encode(SNIPPET, Bos::Omit)),
        }
        all.extend(encode(text, Bos::Omit));
    }
    if let Some(separator) = roles.fim_separator {
        all.push(separator);
        all.extend(encode(FILE, Bos::Omit));
    }
    all.extend(tokenizer.fill_in(&encode(texts.before, Bos::Omit), &encode(texts.after, Bos::Omit))?);
    all.extend(encode(texts.begun, Bos::Omit));
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{
        Control,
        tokenizer::tests::{build, small_bpe},
    };
    use kvas_gguf::Value as Entry;

    /// The prompt for these files as text, by a model that has these tokens besides those of bytes.
    fn read(special: &[&str], files: &[(&str, &str)]) -> Option<String> {
        let mut metadata = small_bpe();
        let mut tokens: Vec<String> = special.iter().map(|token| token.to_string()).collect();
        let bytes = (33..127_u8).map(|byte| (byte as char).to_string());
        tokens.extend(bytes.chain(["Ġ".into(), "Ċ".into()]));
        let kinds = (0..tokens.len()).map(|token| if token < special.len() { 3 } else { 1 }).collect();
        metadata.set("tokenizer.ggml.merges", Entry::Strings(vec![]));
        metadata.set("tokenizer.ggml.tokens", Entry::Strings(tokens));
        metadata.set("tokenizer.ggml.token_type", Entry::I32s(kinds));
        let model = build(&metadata);
        let encode = |text: &str, bos| model.encode(text, Special::Literal, bos);
        let texts = Texts { before: "a", after: "<|fim_middle|>", begun: "b", files: files.to_vec() };
        Some(model.decode(&super::tokens(&model, &encode, &texts)?, Control::Show).unwrap())
    }

    #[test]
    fn prompts_are_those_of_llama_cpp() {
        let (end, fill) = ("<|endoftext|>", ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        let [few, all] = [[&[end], &fill[..]].concat(), [&[end, "<|repo_name|>", "<|file_sep|>"], &fill[..]].concat()];
        let filled = "<|fim_prefix|>a<|fim_suffix|><|fim_middle|><|fim_middle|>b";
        assert_eq!(read(&few, &[]).unwrap(), filled);
        assert_eq!(read(&few, &[("x.c", "y")]).unwrap(), format!("\n\n--- snippet ---\n\ny{filled}"));
        let project = "<|repo_name|>myproject\n";
        assert_eq!(read(&all, &[]).unwrap(), format!("{project}<|file_sep|>filename\n{filled}"));
        let files = [("x.c", "y"), ("z.c", "1\n")];
        let said = "<|file_sep|>x.c\ny<|file_sep|>z.c\n1\n<|file_sep|>filename\n";
        assert_eq!(read(&all, &files).unwrap(), format!("{project}{said}{filled}"));
        assert_eq!(read(&[end, fill[0], fill[1]], &[]), None);
    }
}
