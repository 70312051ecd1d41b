//! By which exponents the layers of a family are compared (ALGORITHMS 5.2). Families of one architecture are told apart by
//! what their files are called.

use super::Header;
use crate::model::spec::Exponents;

/// Of a family whose name contains this. Those of the first stand for all that are not here.
const FAMILIES: [(&str, Exponents); 3] = [
    ("llama3", Exponents { small: [0.4, 0.2], large: [0.6, 0.5] }),
    ("llama2", Exponents { small: [0.5, 0.4], large: [0.5, 0.4] }),
    ("mistral", Exponents { small: [0.6, 0.5], large: [0.4, 0.2] }),
];

/// Those of a file, by its `general.basename` or `general.name`.
pub(super) fn of(header: &Header) -> Exponents {
    let names = ["general.basename", "general.name"].map(|key| header.metadata.string(key).unwrap_or_default());
    names.into_iter().find_map(known).unwrap_or(FAMILIES[0].1)
}

/// Those of a name, if it is that of a family: `Llama-2-7b-chat`, `Mistral 7B`.
fn known(name: &str) -> Option<Exponents> {
    let letters: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
    FAMILIES.iter().find(|(family, _)| letters.contains(family)).map(|(_, exponents)| *exponents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvas_gguf::{Metadata, Value};

    #[test]
    fn families_are_told_apart_by_their_names() {
        let exponents = |name: &str| {
            let mut metadata = Metadata::default();
            metadata.set("general.architecture", Value::String("llama".into()));
            metadata.set("general.name", Value::String(name.into()));
            let header = Header::new(&metadata, []).unwrap();
            (of(&header).of(128), of(&header).of(256))
        };
        assert_eq!(exponents("Llama-2-7b-chat"), ([0.5, 0.4], [0.5, 0.4]));
        assert_eq!(exponents("Mistral 7B Instruct v0.3"), ([0.6, 0.5], [0.4, 0.2]));
        assert_eq!(exponents("Meta Llama 3.1 8B"), ([0.4, 0.2], [0.6, 0.5]));
        assert_eq!(exponents("anything else"), exponents("Meta Llama 3.1 8B"));
    }
}
