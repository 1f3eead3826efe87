//! Legs that carry their prompt's token ids, where these are known (`prompt.send_ids`).

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::codec::json::Edit;
use crate::dialect::PrefillAnswer;
use crate::dialect::token_ids::{PrefillWithIds, TokenIds};
use crate::fleet::Instance;
use crate::prompt::Prompt;
use crate::relay::Relay;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::failure::{Failure, FailureKind};

/// Prompts of more tokens are sent as text: the ids of a million take 7 MB beside the body, and an
/// engine reads them about as slowly as it tokenises the text.
const MOST_IDS: usize = 1 << 20;

/// The ids of a request's prompt for its legs, until its answer has begun: a stream may last for
/// long, and needs them no more.
#[derive(Clone, Default)]
pub struct SentIds(Option<Arc<ArcSwapOption<TokenIds>>>);

impl SentIds {
    fn of(ids: TokenIds) -> SentIds {
        SentIds(Some(Arc::new(ArcSwapOption::from_pointee(ids))))
    }

    /// No leg is sent ids from now on.
    pub fn forget(&self) {
        if let Some(ids) = &self.0 {
            ids.store(None);
        }
    }

    /// The ids that `instance` takes.
    fn for_engine(&self, instance: &Instance) -> Option<Arc<TokenIds>> {
        let ids = self.0.as_ref()?.load_full()?;
        (!ids.needs_reader() || instance.reads_chat_ids()).then_some(ids)
    }
}

/// Tells only if there are any: ids are somebody's prompt.
impl fmt::Debug for SentIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SentIds").field(&self.0.is_some()).finish()
    }
}

/// Edit of a prefill leg's body.
#[derive(Debug)]
pub(super) struct PrefillBody {
    pub(super) edit: Edit,
    /// The ids, if nothing else in the body tells the prompt.
    pub(super) only_ids: Option<Arc<TokenIds>>,
}

impl Relay {
    /// The ids for the legs of a request with this prompt, if they are to be sent.
    pub(super) fn ids_of(&self, request: &ReceivedRequest, prompt: &Prompt) -> SentIds {
        let Some(prompts) = self.prompts.as_ref().filter(|prompts| prompts.sends_ids()) else {
            return SentIds::default();
        };
        let (model, count) = (request.shape.model.as_deref(), prompt.tokens.len());
        let fits = count <= MOST_IDS && prompts.may_send_ids(model, count);
        let ids = || TokenIds::of(request.api, &request.body, &prompt.tokens);
        fits.then(ids).flatten().map(SentIds::of).unwrap_or_default()
    }

    /// `edit` of a prefill leg on `instance`, with ids if it takes them.
    pub(super) fn prefill_with_ids(&self, ask: &Ask, instance: &Instance, edit: Edit) -> PrefillBody {
        let dialect = self.speech.now().dialect;
        match ask.ids.for_engine(instance).filter(|_| dialect.takes_token_ids()) {
            None => PrefillBody { edit, only_ids: None },
            Some(ids) if !dialect.decodes_after_prefill() => {
                PrefillBody { edit: ids.in_decode(edit), only_ids: None }
            }
            Some(ids) => {
                let PrefillWithIds { edit, lacks_text } = ids.in_prefill(edit);
                PrefillBody { edit, only_ids: lacks_text.then_some(ids) }
            }
        }
    }

    /// Checks that a prefiller has computed the ids that were all that it was sent of the prompt.
    ///
    /// # Errors
    /// A failure where it counts other tokens: its process is one that takes no ids. What it
    /// computed is of another prompt, so that nobody may fetch it, and goes with its lease.
    pub(super) fn check_computed(
        &self,
        prefiller: &Instance,
        only_ids: Option<Arc<TokenIds>>,
        said: &PrefillAnswer,
    ) -> Result<(), Failure> {
        let Some(ids) = only_ids.filter(|ids| !ids.is_count(said.usage().prompt)) else { return Ok(()) };
        self.fleet.ignores_chat_ids(prefiller);
        let counted = said.usage().prompt.unwrap_or(0);
        let detail = format!("it was sent {} token ids and computed {counted} tokens", ids.count());
        Err(Failure::new(FailureKind::BadReply, true, detail))
    }

    /// `edit` of a decode leg on `instance`, with ids if it takes them.
    pub(super) fn decode_with_ids(&self, ask: &Ask, instance: &Instance, edit: Edit) -> Edit {
        match ask.ids.for_engine(instance).filter(|_| self.speech.now().dialect.takes_token_ids()) {
            Some(ids) => ids.in_decode(edit),
            None => edit,
        }
    }
}
