//! `pd-proxy generate`: what is made from the command line's own description.

use std::io::{Error, ErrorKind, Result};

use clap::{Args, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;

/// Kinds of text that `pd-proxy generate` prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Generated {
    /// Completions for bash
    Bash,
    /// Completions for zsh
    Zsh,
    /// Completions for fish
    Fish,
    /// A manual page: of the program, or of a command
    Man,
    /// A page of the reference, in Markdown: configuration (the default), cli, http, errors or log
    Reference,
    /// The OpenAPI document of all routes, in JSON
    Openapi,
}

/// Pages of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Page {
    /// Every key of the configuration
    Configuration,
    /// Every command and flag
    Cli,
    /// Every route of the gateway
    Http,
    /// Every error of the gateway
    Errors,
    /// Fields and reasons of the log
    Log,
}

/// Flags of `generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    /// Text to print
    #[arg(value_enum)]
    pub what: Generated,
    /// The command that a manual page is about, or the page of the reference
    #[arg(value_name = "COMMAND|PAGE")]
    pub part: Option<String>,
}

impl GenerateArgs {
    /// The text, `None` where it is not made from the command line.
    ///
    /// # Errors
    /// There is no such command, or the thing has no parts.
    pub fn text(&self) -> Result<Option<Vec<u8>>> {
        let shell = match self.what {
            Generated::Bash => Shell::Bash,
            Generated::Zsh => Shell::Zsh,
            Generated::Fish => Shell::Fish,
            Generated::Man => return self.man().map(Some),
            Generated::Reference | Generated::Openapi => return Ok(None),
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut super::help::program(), "pd-proxy", &mut text);
        Ok(Some(text))
    }

    /// The page of the reference that is asked for.
    ///
    /// # Errors
    /// There is no such page.
    pub fn page(&self) -> Result<Page> {
        let Some(name) = &self.part else { return Ok(Page::Configuration) };
        Page::from_str(name, true).map_err(|_| {
            let pages = Page::value_variants().iter().filter_map(ValueEnum::to_possible_value);
            let names: Vec<String> = pages.map(|page| page.get_name().to_owned()).collect();
            let why =
                format!("generate reference {name}: there is no such page; there are {}", names.join(", "));
            Error::new(ErrorKind::InvalidInput, why)
        })
    }

    fn man(&self) -> Result<Vec<u8>> {
        let mut program = super::help::program();
        program.build();
        let page = match &self.part {
            None => program,
            Some(name) => {
                let command = program.find_subcommand(name).cloned();
                let title = format!("pd-proxy-{name}");
                command.map(|command| command.display_name(title)).ok_or_else(|| {
                    let why = format!(
                        "generate man {name}: there is no such command; `pd-proxy --help` lists them"
                    );
                    Error::new(ErrorKind::InvalidInput, why)
                })?
            }
        };
        let mut text = Vec::new();
        Man::new(page).render(&mut text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(what: Generated, part: Option<&str>) -> Result<String> {
        let args = GenerateArgs { what, part: part.map(str::to_owned) };
        args.text().map(|text| String::from_utf8(text.unwrap_or_default()).unwrap())
    }

    /// As manual pages spell them.
    fn in_man(flag: &str) -> String {
        flag.replace('-', "\\-")
    }

    #[test]
    fn every_flag_and_command_is_completed_and_described() {
        let mut program = super::super::help::program();
        program.build();
        let shown = program.get_arguments().filter(|flag| !flag.is_hide_set());
        let flags: Vec<String> = shown.filter_map(|flag| flag.get_long().map(str::to_owned)).collect();
        assert!(flags.iter().any(|flag| flag == "prefiller-hosts"));
        let man = text(Generated::Man, None).unwrap();
        for shell in [Generated::Bash, Generated::Zsh, Generated::Fish] {
            let completions = text(shell, None).unwrap();
            let missing = flags.iter().find(|flag| !completions.contains(flag.as_str()));
            assert_eq!(missing, None, "{shell:?}");
        }
        assert_eq!(flags.iter().find(|flag| !man.contains(&in_man(flag))), None);
        for command in program.get_subcommands().map(clap::Command::get_name).filter(|name| *name != "help") {
            assert!(man.contains(&in_man(command)), "{command}");
            let page = text(Generated::Man, Some(command)).unwrap();
            assert!(page.contains(&format!(".TH pd-proxy-{command} 1")), "{page}");
        }
    }

    #[test]
    fn a_page_of_nothing_is_an_error() {
        let error = text(Generated::Man, Some("sevre")).unwrap_err();
        assert!(error.to_string().contains("generate man sevre: there is no such command"), "{error}");
        let args = GenerateArgs { what: Generated::Reference, part: Some("flags".to_owned()) };
        let error = args.page().unwrap_err().to_string();
        let expected = "generate reference flags: there is no such page; there are configuration, cli, http, errors, log";
        assert_eq!(error, expected);
    }
}
