//! `pd-proxy api-key`: entries of the file of clients' keys.

use super::{Failure, named, write_out};
use crate::auth::entry::{self as api_key, ApiKeyError};
use crate::cli::ApiKeyCommand;

/// The entry goes to standard output, to be appended to the file; a new key to standard error, to
/// be seen once.
pub(super) fn run(command: &ApiKeyCommand) -> Result<(), Failure> {
    let (entry, key) = made(command).map_err(named)?;
    // Unlike a report it is of no use to anybody when it was not taken, and neither is the key.
    write_out(entry.as_bytes()).map_err(|e| named(format!("the entry can't be written: {e}")))?;
    if let Some(key) = key {
        eprintln!("the key, which is not kept anywhere: {key}");
    }
    Ok(())
}

/// The entry, and the key if it is a new one.
fn made(command: &ApiKeyCommand) -> Result<(String, Option<String>), ApiKeyError> {
    Ok(match command {
        ApiKeyCommand::New(args) => {
            let key = api_key::random();
            (api_key::entry(&args.name, &key)?, Some(key))
        }
        ApiKeyCommand::Hash(args) => {
            let key = api_key::read(std::io::stdin().lock())?;
            (api_key::entry(&args.name, &key)?, None)
        }
    })
}
