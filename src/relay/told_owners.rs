//! Knowledge of other gateways about stored responses: which engine has one, and whose it is. How
//! it comes and goes is not this module's affair.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::auth::Digest;
use crate::fleet::InstanceId;
use crate::relay::response_owners::AliasedModel;

/// Longest time for which a request waits for what others know of a response that this gateway does
/// not know. Without an answer such a request is refused, or all decoders are asked.
const QUESTION_TIME: Duration = Duration::from_millis(50);

/// Responses that wait to be told: those of a second at some thousand of them. The ones beyond it
/// are not told.
const UNTOLD: usize = 4_096;

/// Questions that wait at once, for any id that clients make up. Who is one too many does without.
const QUESTIONS: usize = 64;

/// Place where a response is, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedResponse {
    /// Decoder that has it.
    pub keeper: InstanceId,
    /// Hash of the name of the key with which it was asked for; None where none was, or where that
    /// is not known.
    pub owner: Option<Digest>,
    /// Names of its model, where the client knows it by another than the engine.
    pub alias: Option<AliasedModel>,
}

/// A new response, for others to know.
#[derive(Debug)]
pub struct NewResponse {
    /// Id of the response.
    pub id: String,
    /// Place and owner of it.
    pub response: OwnedResponse,
}

/// A question about a response that this gateway does not know.
#[derive(Debug)]
pub struct Question {
    /// Id of the response.
    pub id: String,
    /// Way back for the answer; dropped where nobody knows.
    pub answer: oneshot::Sender<OwnedResponse>,
}

/// Way to what other gateways know.
#[derive(Debug)]
pub struct Others {
    news: mpsc::Sender<NewResponse>,
    questions: mpsc::Sender<Question>,
}

/// News and questions, for whoever takes them to the other gateways.
#[derive(Debug)]
pub struct Errands {
    /// Responses that are new here.
    pub news: mpsc::Receiver<NewResponse>,
    /// Questions about responses that are not known here.
    pub questions: mpsc::Receiver<Question>,
}

/// A way to the others, and its other end.
pub fn ways() -> (Others, Errands) {
    let (tell, news) = mpsc::channel(UNTOLD);
    let (ask, questions) = mpsc::channel(QUESTIONS);
    (Others { news: tell, questions: ask }, Errands { news, questions })
}

impl Others {
    /// Tells of a new response, unless too much is to be told.
    pub fn tell(&self, id: &str, response: OwnedResponse) {
        // A response that is not told is unknown to others, as it is where they share nothing.
        let _ = self.news.try_send(NewResponse { id: id.to_owned(), response });
    }

    /// Asks for a response; None where nobody knows it, or not in time.
    pub async fn ask(&self, id: &str) -> Option<OwnedResponse> {
        let (answer, heard) = oneshot::channel();
        self.questions.try_send(Question { id: id.to_owned(), answer }).ok()?;
        timeout(QUESTION_TIME, heard).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_question_is_answered_or_given_up() {
        let (others, mut errands) = ways();
        let known = OwnedResponse { keeper: InstanceId(1), owner: None, alias: None };
        let answered = async {
            let question = errands.questions.recv().await.unwrap();
            assert_eq!(question.id, "resp_1");
            question.answer.send(known.clone()).unwrap();
            drop(errands.questions.recv().await);
            let kept = errands.questions.recv().await;
            tokio::time::sleep(QUESTION_TIME * 2).await;
            kept
        };
        let asked = async {
            assert_eq!(others.ask("resp_1").await.as_ref(), Some(&known));
            assert_eq!(others.ask("unknown").await, None);
            assert_eq!(others.ask("late").await, None, "its time is over");
        };
        tokio::join!(answered, asked);
        drop(errands);
        assert_eq!(others.ask("resp_1").await, None, "nobody is there");
    }

    #[tokio::test(start_paused = true)]
    async fn more_than_has_room_is_not_told() {
        let (others, mut errands) = ways();
        let response = OwnedResponse { keeper: InstanceId(1), owner: None, alias: None };
        (0..=UNTOLD).for_each(|nth| others.tell(&nth.to_string(), response.clone()));
        drop(others);
        let mut told = 0;
        while errands.news.recv().await.is_some() {
            told += 1;
        }
        assert_eq!(told, UNTOLD);
    }
}
