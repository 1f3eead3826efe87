//! Prompt of DeepSeek V4 and V4.1 from turns, with the few points in which the two differ.

use serde_json::Value;

use super::deepseek::{
    ASSISTANT, BOS, EOS, REMINDER, THINK, THINK_END, Turn, USER, drop_thinking, merge, sort_results,
    task_token, write_blocks,
};
use super::dsml::{Tags, write_calls, write_tools};
use crate::prompt::Reason;
use crate::prompt::allowance::Stop;

/// Instructions for tools, part of the models' format.
const TOOLS: &str = include_str!("texts/deepseek_v4_tools.txt");

/// Points in which models differ.
pub(super) trait Style {
    /// Names of the tags of calls.
    fn tags(&self) -> Tags;

    /// Text before the first turn.
    fn opening(&self, first: &Turn, thinks: bool) -> String;

    /// Text before a system message at `at`.
    fn system(&self, at: usize) -> &'static str;

    /// True if an answer follows a system message; `next` is the turn after it.
    fn is_answered(&self, system_at: usize, next: Option<&Turn>) -> bool;

    /// True if a turn begins a new question.
    fn is_question(&self, at: usize, turn: &Turn) -> bool;
}

/// Choices of the chat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    /// True if the answer begins with a thought.
    pub(super) thinks: bool,
    /// True if earlier thoughts are left out, where no tools are declared.
    pub(super) drops: bool,
}

/// The prompt of a conversation as its messages are.
///
/// # Errors
/// The [`Reason`] for which the engine refuses it, or it is not known.
pub(super) fn render(
    turns: Vec<Turn>,
    style: &impl Style,
    choices: Choices,
    stop: &Stop,
) -> Result<String, Reason> {
    let mut turns = merge(turns);
    sort_results(&mut turns);
    let Choices { thinks, drops } = choices;
    let drops = drops && turns.iter().all(|turn| turn.tools.is_empty());
    if thinks && drops {
        let last = last_question(&turns, style);
        drop_thinking(&mut turns, last);
    }
    let last_question = last_question(&turns, style);
    let mut prompt = Prompt { out: BOS.to_owned(), style, choices: Choices { thinks, drops }, last_question };
    if let Some(first) = turns.first() {
        prompt.out.push_str(&style.opening(first, thinks));
    }
    for at in 0..turns.len() {
        if stop.is_told() {
            return Err(Reason::Limit);
        }
        prompt.write(&turns, at)?;
    }
    Ok(prompt.out)
}

fn last_question(turns: &[Turn], style: &impl Style) -> Option<usize> {
    let mut numbered = turns.iter().enumerate();
    numbered.rfind(|(at, turn)| style.is_question(*at, turn)).map(|(at, _)| at)
}

/// The prompt under construction.
struct Prompt<'a, S> {
    out: String,
    style: &'a S,
    choices: Choices,
    last_question: Option<usize>,
}

impl<S: Style> Prompt<'_, S> {
    fn write(&mut self, turns: &[Turn], at: usize) -> Result<(), Reason> {
        let Some(turn) = turns.get(at) else { return Err(Reason::Shape) };
        match turn.role.as_str() {
            "system" => {
                self.out.push_str(self.style.system(at));
                self.out.push_str(&turn.content);
                self.tools(&turn.tools)?;
            }
            "developer" if turn.content.is_empty() => return Err(Reason::Rejected),
            "developer" => {
                self.out.push_str(USER);
                self.out.push_str(&turn.content);
                self.tools(&turn.tools)?;
            }
            "user" => {
                self.out.push_str(USER);
                write_blocks(&mut self.out, &turn.blocks);
            }
            "latest_reminder" => {
                self.out.push_str(REMINDER);
                self.out.push_str(&turn.content);
            }
            "assistant" => {
                let before = at.checked_sub(1).and_then(|before| turns.get(before));
                self.assistant(turn, at, before.is_some_and(|before| before.task.is_some()))?;
            }
            _ => return Err(Reason::Rejected),
        }
        let next = turns.get(at + 1);
        match next.map(|next| next.role.as_str()) {
            None | Some("assistant" | "latest_reminder") => self.transition(turn, at, next),
            Some(_) => Ok(()),
        }
    }

    fn tools(&mut self, tools: &[Value]) -> Result<(), Reason> {
        if tools.is_empty() {
            return Ok(());
        }
        self.out.push_str("\n\n");
        write_tools(&mut self.out, TOOLS, tools, self.style.tags())
    }

    fn assistant(&mut self, turn: &Turn, at: usize, is_task: bool) -> Result<(), Reason> {
        let Choices { thinks, drops } = self.choices;
        let is_current = self.last_question.is_none_or(|last| at > last);
        if thinks && !is_task && (!drops || is_current) {
            self.out.push_str(&turn.reasoning);
            self.out.push_str(THINK_END);
        }
        self.out.push_str(&turn.content);
        if !turn.calls.is_empty() {
            write_calls(&mut self.out, &turn.calls, self.style.tags())?;
        }
        self.out.push_str(EOS);
        Ok(())
    }

    /// Opens an answer, or a task, after a turn.
    fn transition(&mut self, turn: &Turn, at: usize, next: Option<&Turn>) -> Result<(), Reason> {
        let Choices { thinks, drops } = self.choices;
        if let Some(task) = &turn.task {
            let token = task_token(task)?;
            if task == "action" {
                self.out.push_str(ASSISTANT);
                self.out.push_str(if thinks { THINK } else { THINK_END });
            }
            self.out.push_str(token);
            return Ok(());
        }
        let is_answered = match turn.role.as_str() {
            "user" | "developer" => true,
            "system" => self.style.is_answered(at, next),
            _ => false,
        };
        if is_answered {
            let is_current = self.last_question.is_none_or(|last| at >= last);
            self.out.push_str(ASSISTANT);
            self.out.push_str(if thinks && (!drops || is_current) { THINK } else { THINK_END });
        }
        Ok(())
    }
}
