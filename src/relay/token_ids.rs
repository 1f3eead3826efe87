//! Legs that carry their prompt's token ids, where these are known (`prompt.send_ids`).

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::codec::json::Edit;
use crate::dialect::token_ids::{PrefillWithIds, TokenIds, asking_for_prompt};
use crate::dialect::{Api, PrefillAnswer};
use crate::fleet::{Instance, Role};
use crate::prompt::Prompt;
use crate::relay::Relay;
use crate::relay::ask::{Ask, ReceivedRequest};
use crate::relay::failure::{Failure, FailureKind};
use crate::tokenization::facts::takes_completion_ids;

/// Prompts of more tokens are sent as text. Ids save engines more the longer a prompt is, as far as
/// that was measured (benches/TOKENS.md); but those of a million take 7 MB beside the body.
const MOST_IDS: usize = 1 << 20;

/// Bytes of one id in a prefiller's answer, with its comma.
const ID_BYTES: usize = 8;

/// The ids of a request's prompt for its legs, until its answer has begun: a stream may last for
/// long, and needs them no more. Where there are none yet, its prefiller is asked for them.
#[derive(Clone, Default)]
pub struct SentIds(Option<Arc<ArcSwapOption<TokenIds>>>);

impl SentIds {
    fn of(ids: Option<TokenIds>) -> SentIds {
        SentIds(Some(Arc::new(ArcSwapOption::from_pointee(ids))))
    }

    /// True if a prefiller is to tell the ids.
    fn are_missing(&self) -> bool {
        self.0.as_ref().is_some_and(|ids| ids.load().is_none())
    }

    fn learn(&self, told: Option<TokenIds>) {
        if let Some(ids) = self.0.as_ref().filter(|ids| ids.load().is_none()) {
            ids.store(told.map(Arc::new));
        }
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
        takes_ids(instance, ids.needs_reader()).then_some(ids)
    }
}

/// True if the process of `instance` is known to take token ids: in chats because it showed that
/// it does, in completions by its release.
fn takes_ids(instance: &Instance, in_chats: bool) -> bool {
    if in_chats {
        return instance.reads_chat_ids();
    }
    // A process that may be another one by now may have other tokens.
    !instance.health().is_doubted()
        && instance.release().is_some_and(|release| takes_completion_ids(&release))
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
    /// The ids for the legs of a request with this prompt, if they are to be sent; `None` for a
    /// prompt whose tokens are not known.
    pub(super) fn ids_of(&self, request: &ReceivedRequest, prompt: Option<&Prompt>) -> SentIds {
        if !self.settings.now().send_ids {
            return SentIds::default();
        }
        if let Some(known) = prompt.and_then(|prompt| self.known_ids(request, prompt)) {
            return SentIds::of(Some(known));
        }
        let room_bytes = self.settings.now().prefill_reply_bytes / 2;
        let most_ids = MOST_IDS.min(room_bytes / ID_BYTES) as u64;
        let is_askable = request.shape.prompt_tokens <= most_ids
            && request.shape.bypass.is_none()
            && TokenIds::may_be_told(request.api, &request.body);
        if is_askable { SentIds::of(None) } else { SentIds::default() }
    }

    fn known_ids(&self, request: &ReceivedRequest, prompt: &Prompt) -> Option<TokenIds> {
        let (model, count) = (request.shape.model.as_deref(), prompt.tokens.len());
        let fits = count <= MOST_IDS && self.prompts.as_ref()?.may_send_ids(model, count);
        fits.then(|| TokenIds::of(request.api, &request.body, &prompt.tokens)).flatten()
    }

    /// `edit` of a prefill leg on `instance`, with ids if it takes them.
    pub(super) fn prefill_with_ids(&self, ask: &Ask, instance: &Instance, edit: Edit) -> PrefillBody {
        if ask.ids.0.is_none() {
            return PrefillBody { edit, only_ids: None };
        }
        let dialect = self.speech.now().dialect;
        match ask.ids.for_engine(instance).filter(|_| dialect.takes_token_ids()) {
            None if self.asks_for_prompt(ask, instance) => {
                PrefillBody { edit: asking_for_prompt(edit), only_ids: None }
            }
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

    /// True if `prefiller` is to tell the ids of its prompt, since a decoder would take them.
    fn asks_for_prompt(&self, ask: &Ask, prefiller: &Instance) -> bool {
        let dialect = self.speech.now().dialect;
        let in_chats = ask.api == Api::Chat;
        let is_taken = || self.fleet.members(Role::Decode).iter().any(|decoder| takes_ids(decoder, in_chats));
        let is_in_time = dialect.takes_token_ids() && dialect.decodes_after_prefill();
        ask.ids.are_missing() && is_in_time && takes_ids(prefiller, false) && is_taken()
    }

    /// Keeps the ids that a prefiller told for its decoder, if it was asked for them.
    pub(super) fn learn_ids(&self, ask: &Ask, said: &PrefillAnswer) {
        if ask.ids.are_missing() {
            ask.ids.learn(TokenIds::told(ask.api, &ask.body, said));
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
        let sent = ids.count().unwrap_or(0);
        let detail = format!("it was sent {sent} token ids and computed {counted} tokens");
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
