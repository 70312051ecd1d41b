//! Flags of `kvas serve` from a file and from the environment: what the command line does not say, the environment
//! does, and what neither does, the file.

use super::Cli;
use anyhow::{Context, bail};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, parser::ValueSource};
use std::ffi::OsString;

/// The command that takes its flags from elsewhere, too.
const COMMAND: &str = "serve";

/// The arguments, with those from the environment and from `--config FILE` put behind the command's name.
pub(crate) fn expand(arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    if arguments.get(1).is_none_or(|name| name != COMMAND) {
        return Ok(arguments);
    }
    // A flag that has to be there may be in the file; what is wrong is said when everything is there.
    let command = Cli::command().ignore_errors(true);
    let matches = command.clone().try_get_matches_from(&arguments);
    let Some(given) = matches.ok().and_then(|matches| matches.subcommand_matches(COMMAND).cloned()) else {
        return Ok(arguments);
    };
    let serve = command.find_subcommand(COMMAND).expect("the command is there").clone();
    let file = match given.get_one::<std::path::PathBuf>("config") {
        Some(path) => of_file(path, &serve)?,
        None => Vec::new(),
    };
    let mut all = arguments[..2].to_vec();
    for arg in flags(&serve).filter(|arg| !is_given(&given, arg)) {
        let name = arg.get_long().unwrap_or_default();
        let from_file = || file.iter().find(|(known, _)| known == name).map(|(_, values)| values.clone());
        let values = of_environment(arg)?.or_else(from_file);
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        for value in values.into_iter().flatten() {
            match (takes_value, value.as_str()) {
                (true, value) => all.push(format!("--{name}={value}").into()),
                (false, "true" | "1") => all.push(format!("--{name}").into()),
                (false, "false" | "0") => {}
                (false, value) => bail!("{name}: {value}, expected true or false"),
            }
        }
    }
    all.extend(arguments.into_iter().skip(2));
    Ok(all)
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_long().is_some_and(|name| name != "config" && name != "help"))
}

fn is_given(given: &ArgMatches, arg: &Arg) -> bool {
    given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// `KVAS_CTX_SIZE` for `--ctx-size`.
fn of_environment(arg: &Arg) -> anyhow::Result<Option<Vec<String>>> {
    let name = format!("KVAS_{}", arg.get_long().unwrap_or_default().replace('-', "_").to_uppercase());
    match std::env::var(&name) {
        Ok(value) => Ok(Some(vec![value])),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => bail!("{name}: no text, expected UTF-8"),
    }
}

/// The flags of a TOML file: `ctx-size = 8192`, `api-key = ["a", "b"]`, `share-prefixes = true`.
fn of_file(path: &std::path::Path, command: &Command) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| shown.to_string())?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
        anyhow::anyhow!("{shown}: line {line}: {}", error.message())
    })?;
    let mut all = Vec::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        if !flags(command).any(|arg| arg.get_long() == Some(&name)) {
            bail!("{shown}: {key}: there is no such flag, expected one of kvas serve --help");
        }
        let one = |value: &toml::Value| match value {
            toml::Value::String(text) => Ok(text.clone()),
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
            toml::Value::Array(_) | toml::Value::Table(_) | toml::Value::Datetime(_) => {
                bail!("{shown}: {key}: expected a text, a number, true, false, or a list of these")
            }
        };
        let values = match value.as_array() {
            Some(list) => list.iter().map(one).collect::<anyhow::Result<_>>()?,
            None => vec![one(&value)?],
        };
        all.push((name, values));
    }
    Ok(all)
}
