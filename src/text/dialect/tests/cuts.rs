//! What is read depends neither on how the text is cut nor on where it ends.

use super::*;
use crate::text::tokenizer::tests::Random;

/// The samples under both modes, with and without tools.
fn readers(case: &Case) -> Vec<AnswerReader> {
    let (name, prompt, ..) = case;
    let dialect = dialect(name);
    vec![
        dialect.reader(prompt, &tools(), ReasoningMode::Split),
        dialect.reader(prompt, &tools(), ReasoningMode::Raw),
        dialect.reader(prompt, &[], ReasoningMode::Split),
    ]
}

fn boundaries(text: &str) -> Vec<usize> {
    (0..=text.len()).filter(|&at| text.is_char_boundary(at)).collect()
}

#[test]
fn parts_do_not_depend_on_cuts() {
    for case in forms::all() {
        let text = case.2;
        let places = boundaries(text);
        for number in 0..3 {
            let whole = read_pieces(&mut readers(&case)[number], &[text]);
            let single: Vec<&str> = places.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            assert_eq!(read_pieces(&mut readers(&case)[number], &single), whole, "{text:?} by characters");
            if number > 0 {
                continue;
            }
            for (at, &first) in places.iter().enumerate() {
                for &second in places[at..].iter().step_by(3) {
                    let pieces = [&text[..first], &text[first..second], &text[second..]];
                    let (name, prompt, ..) = case;
                    let mut reader = dialect(name).reader(prompt, &tools(), ReasoningMode::Split);
                    assert_eq!(read_pieces(&mut reader, &pieces), whole, "{pieces:?}");
                }
            }
        }
    }
}

/// The letters and digits of an answer, without those of markers.
fn words(text: &str) -> Vec<String> {
    let word = |text: &str| text.chars().all(char::is_alphanumeric) && text.chars().count() > 1;
    text.split(|c: char| !c.is_alphanumeric()).filter(|text| word(text)).map(str::to_owned).collect()
}

/// Every word that is in the whole reading and that was written before the answer ended is in what was read until then.
#[test]
fn an_answer_that_ends_anywhere_loses_nothing() {
    for case in forms::all() {
        let (name, prompt, text, expected) = case;
        let markers = format!("think say call {}", dialect(name).markers().concat());
        for end in boundaries(text) {
            let found = read(name, prompt, &text[..end]);
            let there = words(&found);
            for word in words(expected).iter().filter(|word| !markers.contains(word.as_str())) {
                let written = words(&text[..end]).contains(word);
                let shown = there.iter().any(|shown| shown.starts_with(word.as_str()));
                // Escapes are not words of the answer, and a cut makes words that are none.
                assert!(
                    !written || shown || text.contains('\\'),
                    "{name} lost {word:?}: {:?} gave {found:?}",
                    &text[..end]
                );
            }
            let tagged =
                prompt.contains("<think>") || text.starts_with("[THINK]") || text.trim_start().starts_with("<think>");
            if !found.contains("call(") && !found.contains("think(") && name != "harmony" && !tagged {
                assert_eq!(found.trim_start_matches("say(").trim_end_matches(')'), text[..end].trim_end_matches(')'));
            }
        }
    }
}

/// Of an answer that has to be calls no text is left where it is cut off, and everything else is read as it is.
#[test]
fn the_beginning_of_a_forced_call_is_no_text() {
    for (name, text) in [
        ("hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"),
        ("mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]"),
        ("harmony", "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"Rome\"}<|call|>"),
    ] {
        let reader = || dialect(name).reader("", &tools(), ReasoningMode::Split);
        let mut texts = 0;
        for end in boundaries(text) {
            let mut parts = read_pieces(&mut reader(), &[&text[..end]]);
            texts += usize::from(matches!(parts[..], [Part::Content(_)]));
            parts.retain(|part| !matches!(part, Part::Content(_)));
            assert_eq!(read_pieces(&mut reader().of_calls(), &[&text[..end]]), parts, "{:?}", &text[..end]);
        }
        assert!(texts > 10, "{name}: where nobody knows that it is a call, its beginning may be a text");
    }
}

/// Pieces of all forms in any order: no panic, the same parts whatever the cuts, and all letters once.
#[test]
fn any_mixture_is_read() {
    let mut pieces: Vec<&str> = NAMES.iter().flat_map(|name| dialect(name).markers().to_vec()).collect();
    pieces.extend([
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"name\": \"now\"",
        "\"arguments\":",
        ", ",
        "\n",
        "é",
        "x1",
        "\\",
        "\"",
        ": ",
    ]);
    pieces.extend([
        "<function=",
        "now",
        ">",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "```json\n",
        "=",
        " to=",
        ";",
        "'",
    ]);
    let mut random = Random(17);
    for round in 0..6000 {
        let text: String = (0..1 + random.below(16)).map(|_| pieces[random.below(pieces.len())]).collect();
        let dialect = dialect(NAMES[round % NAMES.len()]);
        let mode = if random.below(4) == 0 { ReasoningMode::Raw } else { ReasoningMode::Split };
        let prompt = ["", "<think>\n", "<|start|>assistant<|channel|>final<|message|>"][random.below(3)];
        let whole = read_pieces(&mut dialect.reader(prompt, &tools(), mode), &[&text]);
        let mut cut = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let at = (1 + random.below(9)..rest.len()).find(|&at| rest.is_char_boundary(at)).unwrap_or(rest.len());
            cut.push(&rest[..at]);
            rest = &rest[at..];
        }
        assert_eq!(read_pieces(&mut dialect.reader(prompt, &tools(), mode), &cut), whole, "{cut:?}");
        let read: String = whole.iter().map(|part| format!("{part:?}")).collect();
        let count = |text: &str| text.matches("x1").count();
        let named = text.contains("<|channel|>") || text.contains("<|start|>") || text.contains(" to=");
        assert!(
            count(&read) == count(&text) || named || !read.is_empty() && read.contains("Call"),
            "{text:?} gave {read}"
        );
    }
}
