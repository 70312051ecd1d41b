//! Flags of `kvas serve` from a file and from the environment: what the command line does not say, the environment
//! does, and what neither does, the file.

use super::{Cli, input};
use anyhow::bail;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, error::ErrorKind, parser::ValueSource};
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
    let named = given.get_one::<std::path::PathBuf>("config").cloned();
    let file = match named.or_else(|| std::env::var_os("KVAS_CONFIG").map(Into::into)) {
        Some(path) => of_file(&path, &serve)?,
        None => Vec::new(),
    };
    let mut all = arguments[..2].to_vec();
    for arg in flags(&serve).filter(|arg| !is_given(&given, arg)) {
        let name = arg.get_long().unwrap_or_default();
        let from_file = || file.iter().find(|found| found.name == name).cloned();
        if let Some(found) = of_environment(arg)?.or_else(from_file) {
            all.extend(found.arguments(arg, &serve)?);
        }
    }
    all.extend(arguments.into_iter().skip(2));
    Ok(all)
}

/// Values of a flag that stood elsewhere than on the command line.
#[derive(Debug, Clone)]
struct Found {
    /// The flag, without its dashes.
    name: String,
    /// The file and the key, or the variable.
    place: String,
    values: Vec<String>,
}

impl Found {
    /// The same on a command line. What is wrong with a value is said with where it stood.
    fn arguments(&self, arg: &Arg, command: &Command) -> anyhow::Result<Vec<OsString>> {
        let Self { name, place, values } = self;
        let takes_value = matches!(arg.get_action(), ArgAction::Set | ArgAction::Append);
        let mut all = Vec::new();
        for value in values {
            match (takes_value, value.as_str()) {
                (true, value) => all.push(format!("--{name}={value}")),
                (false, "true" | "1") => all.push(format!("--{name}")),
                (false, "false" | "0") => {}
                (false, value) => bail!("{place}: {value}, expected true or false"),
            }
        }
        for argument in &all {
            let line = [command.get_name(), argument];
            // What else may be missing is said when everything is there.
            if let Err(error) = command.clone().try_get_matches_from(line)
                && matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::ValueValidation)
            {
                bail!("{place}: {}", in_one_line(&error));
            }
        }
        Ok(all.into_iter().map(OsString::from).collect())
    }
}

/// What is wrong, and what else could have been said.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
    let first = lines.next().unwrap_or_default();
    let rest: Vec<&str> = lines.collect();
    [first.strip_prefix("error: ").unwrap_or(first), &rest.join(" ")].join(" ").trim_end().to_string()
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| arg.get_long().is_some_and(|name| name != "config" && name != "help"))
}

fn is_given(given: &ArgMatches, arg: &Arg) -> bool {
    given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// `KVAS_CTX_SIZE` for `--ctx-size`.
fn of_environment(arg: &Arg) -> anyhow::Result<Option<Found>> {
    let name = arg.get_long().unwrap_or_default().to_string();
    let place = format!("KVAS_{}", name.replace('-', "_").to_uppercase());
    match std::env::var(&place) {
        Ok(value) => Ok(Some(Found { name, place, values: vec![value] })),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => bail!("{place}: no text, expected UTF-8"),
    }
}

/// The flags of a TOML file: `ctx-size = 8192`, `api-key = ["a", "b"]`, `share-prefixes = true`.
fn of_file(path: &std::path::Path, command: &Command) -> anyhow::Result<Vec<Found>> {
    let shown = path.display();
    let text = input::text(path, &shown)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| 1 + text[..span.start].matches('\n').count());
        anyhow::anyhow!("{shown}: line {line}: {}", error.message())
    })?;
    let mut all: Vec<Found> = Vec::new();
    for (key, value) in table {
        let place = format!("{shown}: {key}");
        let name = key.replace('_', "-");
        if !flags(command).any(|arg| arg.get_long() == Some(&name)) {
            bail!("{place}: there is no such flag, expected one of kvas serve --help");
        }
        if all.iter().any(|found| found.name == name) {
            bail!("{place}: {name} is there in another spelling, expected one of them");
        }
        let one = |value: &toml::Value| match value {
            toml::Value::String(text) => Ok(text.clone()),
            toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
            toml::Value::Array(_) | toml::Value::Table(_) | toml::Value::Datetime(_) => {
                bail!("{place}: expected a text, a number, true, false, or a list of these")
            }
        };
        let values = match value.as_array() {
            Some(list) => list.iter().map(one).collect::<anyhow::Result<_>>()?,
            None => vec![one(&value)?],
        };
        all.push(Found { name, place, values });
    }
    Ok(all)
}
