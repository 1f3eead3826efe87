//! EMS's lookup servers. They are asked the smallest question, in their own language and no other:
//! a message that they don't understand ends them.

use super::{Grade, Inquiry, Keys, Report, all};
use crate::pool::ems::check;

/// Asks every server once.
pub(super) async fn ems(inquiry: &Inquiry<'_>, report: &mut Report) -> Option<Keys> {
    let servers = inquiry.addresses();
    let checked = all(&servers, |server| async move { inquiry.within(check(&server)).await }).await;
    for (server, answer) in checked {
        match answer {
            Ok(()) => report.say(Grade::Good, format!("EMS lookup server {server} answers")),
            Err(why) => {
                let text = format!("EMS lookup server {server} (pool.addresses): {why}");
                let advice = "is the prefiller up, and is this the port of its lookup server?";
                let busy =
                    "one that was given a broken message answers no more until its engine is restarted";
                report.say(Grade::Bad, format!("{text}; {advice} ({busy})"));
            }
        }
    }
    if !report.good() {
        return None;
    }
    report.say(
        Grade::Note,
        "EMS does not tell its keys: that hashes are the engines' shows in pooled_tokens alone",
    );
    None
}
