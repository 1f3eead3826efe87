//! Chats of DeepSeek V3.2 (`vllm/tokenizers/deepseek_v32_encoding.py`, the same in 0.32 and 0.33).

use super::deepseek::{ASSISTANT, BOS, EOS, THINK, THINK_END, Turn, USER, is_true};
use super::dsml::{Tags, write_calls, write_tools};
use crate::prompt::Reason;
use crate::prompt::chat::Chat;
use crate::prompt::media::MediaForm;
use crate::prompt::message::conversation;
use crate::prompt::renderer::Moment;
use crate::prompt::template::ContentFormat;

const TAGS: Tags = Tags { calls: "function_calls", invoke: "invoke", parameter: "parameter" };

/// Part of the model's format, from its encoding.
const TOOLS: &str = include_str!("texts/deepseek_v32_tools.txt");

/// The prompt of a chat.
pub(super) fn render(chat: Chat, moment: Moment<'_>) -> Result<String, Reason> {
    let thinks = is_true(&chat, "thinking", false) || is_true(&chat, "enable_thinking", false);
    let messages = conversation(chat.messages, ContentFormat::String, MediaForm::Unknown)?;
    let mut turns = messages.iter().map(Turn::read).collect::<Result<Vec<_>, _>>()?;
    if let Some(tools) = chat.tools.filter(|tools| !tools.is_empty()) {
        turns.insert(0, Turn { tools, ..Turn::empty_system() });
    }
    if thinks && turns.last().is_some_and(|turn| turn.is("user")) {
        drop_thinking(&mut turns)?;
    }
    let mut prompt = Prompt { out: BOS.to_owned(), thinks, last_user: last_user(&turns), caller: None };
    for at in 0..turns.len() {
        if moment.stop.is_told() {
            return Err(Reason::Limit);
        }
        prompt.write(&turns, at)?;
    }
    Ok(prompt.out)
}

fn last_user(turns: &[Turn]) -> Option<usize> {
    turns.iter().rposition(|turn| matches!(turn.role.as_str(), "user" | "developer"))
}

/// Leaves out the reasoning before the last message of the user. The engine drops messages of other
/// roles there, too, and then fails, since it counts them all the same.
fn drop_thinking(turns: &mut [Turn]) -> Result<(), Reason> {
    let earlier = last_user(turns).unwrap_or(0);
    for turn in turns.iter_mut().take(earlier) {
        match turn.role.as_str() {
            "user" | "system" | "tool" => {}
            "assistant" => turn.reasoning.clear(),
            _ => return Err(Reason::Rejected),
        }
    }
    Ok(())
}

/// The prompt under construction.
struct Prompt {
    out: String,
    thinks: bool,
    last_user: Option<usize>,
    /// Place of the last message that is no result of a tool.
    caller: Option<usize>,
}

impl Prompt {
    fn write(&mut self, turns: &[Turn], at: usize) -> Result<(), Reason> {
        let Some(turn) = turns.get(at) else { return Err(Reason::Shape) };
        let result = match turn.role.as_str() {
            "system" => self.system(turn),
            "developer" => self.developer(turn, at),
            "user" => {
                self.question(&turn.content, at);
                Ok(())
            }
            "tool" => return self.tool(turns, turn, at),
            "assistant" => self.assistant(turn, at),
            _ => Err(Reason::Rejected),
        };
        self.caller = Some(at);
        result
    }

    fn system(&mut self, turn: &Turn) -> Result<(), Reason> {
        self.out.push_str(&turn.content);
        if turn.tools.is_empty() {
            return Ok(());
        }
        self.out.push_str("\n\n");
        write_tools(&mut self.out, TOOLS, &turn.tools, TAGS)
    }

    fn developer(&mut self, turn: &Turn, at: usize) -> Result<(), Reason> {
        if turn.content.is_empty() {
            return Err(Reason::Rejected);
        }
        self.question(&format!("\n\n# The user's message is: {}", turn.content), at);
        Ok(())
    }

    fn question(&mut self, text: &str, at: usize) {
        self.out.push_str(USER);
        self.out.push_str(text);
        self.out.push_str(ASSISTANT);
        self.thought(self.last_user == Some(at));
    }

    /// Begins a thought, or says that there is none.
    fn thought(&mut self, may_think: bool) {
        self.out.push_str(if may_think && self.thinks { THINK } else { THINK_END });
    }

    fn tool(&mut self, turns: &[Turn], turn: &Turn, at: usize) -> Result<(), Reason> {
        // A result in front counts as one of the last message: the engine looks at the place -1.
        let (caller, order) = match self.caller {
            Some(caller) => (turns.get(caller), at - caller),
            None if at == 0 => (turns.last(), 1),
            None => return Err(Reason::Rejected),
        };
        let caller = caller.filter(|caller| at == 0 || caller.is("assistant")).ok_or(Reason::Rejected)?;
        if caller.calls.len() < order {
            return Err(Reason::Rejected);
        }
        if order == 1 {
            self.out.push_str("\n\n<function_results>");
        }
        self.out.push_str(&format!("\n<result>{}</result>", turn.content));
        if order == caller.calls.len() {
            self.out.push_str("\n</function_results>\n\n");
            self.thought(self.last_user.is_none_or(|last| at >= last));
        }
        Ok(())
    }

    fn assistant(&mut self, turn: &Turn, at: usize) -> Result<(), Reason> {
        if self.thinks && self.last_user.is_none_or(|last| at > last) {
            if turn.reasoning.is_empty() && turn.calls.is_empty() {
                return Err(Reason::Rejected);
            }
            self.out.push_str(&turn.reasoning);
            self.out.push_str(THINK_END);
        }
        self.out.push_str(&turn.content);
        if !turn.calls.is_empty() {
            write_calls(&mut self.out, &turn.calls, TAGS)?;
        }
        self.out.push_str(EOS);
        Ok(())
    }
}
