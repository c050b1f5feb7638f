//! Commands and blocks of code that the documents for users show. The tests of `taut-lab` include this file, too.

use std::fs;
use std::path::Path;

/// A block of code in a document.
pub(crate) struct Block {
    /// The document and the line where it begins.
    pub(crate) place: String,
    pub(crate) lines: Vec<String>,
}

/// Returns the documents for users, with their names from the repository's root.
pub(crate) fn pages() -> Vec<(String, String)> {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let is_root = |folder: &&Path| folder.join("Cargo.lock").is_file();
    let root = package.ancestors().find(is_root).expect("a workspace");
    let mut pages = Vec::new();
    for folder in [".", "docs", "docs/tutorials", "docs/reference"] {
        let Ok(entries) = fs::read_dir(root.join(folder)) else {
            continue;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let text = fs::read_to_string(&path).unwrap();
                pages.push((format!("{folder}/{name}"), text));
            }
        }
    }
    pages.retain(|(name, _)| name != "./CHANGELOG.md");
    pages.sort();
    pages
}

/// Returns the blocks of a document that are fenced, or indented after an empty line.
pub(crate) fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut fenced = false;
    // Whether the line before belongs to the last block, and whether it was empty.
    let (mut open, mut empty) = (false, true);
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            open = false;
            continue;
        }
        let is_code = fenced || line.starts_with("    ") && (open || empty);
        if is_code || open && line.is_empty() {
            if !open {
                let place = format!("{page}:{}", i + 1);
                let lines = Vec::new();
                blocks.push(Block { place, lines });
            }
            if let Some(block) = blocks.last_mut() {
                block.lines.push(line.to_owned());
            }
        }
        open = is_code || open && line.is_empty();
        empty = line.is_empty();
    }
    for block in &mut blocks {
        let indents = block.lines.iter().filter(|line| !line.trim().is_empty());
        let indent = indents
            .map(|line| line.len() - line.trim_start().len())
            .min();
        for line in &mut block.lines {
            *line = line
                .get(indent.unwrap_or(0)..)
                .unwrap_or_default()
                .trim_end()
                .to_owned();
        }
    }
    blocks
}

impl Block {
    /// Returns the commands of taut. If the block has prompts, lines without one are output.
    pub(crate) fn commands(&self) -> Vec<String> {
        // In a tutorial with the name of the host in front of it.
        let prompt = |line: &str| {
            let (host, command) = line.split_once("$ ").or_else(|| line.split_once("# "))?;
            let is_host = host.bytes().all(|b| b.is_ascii_lowercase());
            is_host.then(|| command.to_owned())
        };
        let has_prompts = self
            .lines
            .iter()
            .any(|line| prompt(line).is_some_and(|l| of_taut(&l).is_some()));
        let mut commands = Vec::new();
        let mut lines = self.lines.iter();
        while let Some(line) = lines.next() {
            let line = match prompt(line) {
                Some(line) => line,
                None if has_prompts => continue,
                None => line.clone(),
            };
            let Some(mut command) = of_taut(&line).map(str::to_owned) else {
                continue;
            };
            while let Some(begun) = command.strip_suffix('\\') {
                command = format!("{begun}{}", lines.next().map_or("", |line| line.trim()));
            }
            commands.push(cut(&command).to_owned());
        }
        commands
    }
}

/// Returns the command of a line, if that is one of taut. A word in front of a comma or parenthesis is part of a sentence.
fn of_taut(line: &str) -> Option<&str> {
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    let command = line.strip_prefix("taut ")?.split(' ').next()?;
    let is_command =
        !command.is_empty() && command.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    is_command.then_some(line)
}

/// Returns the command without a comment or a description behind it, and without what the shell does with it.
pub(crate) fn cut(command: &str) -> &str {
    let mut quoted = None;
    for (i, c) in command.char_indices() {
        match (c, quoted) {
            ('\'' | '"', None) => quoted = Some(c),
            (c, Some(quote)) if c == quote => quoted = None,
            (_, Some(_)) => {}
            _ => {
                let rest = &command[i..];
                let ends = [" | ", " > ", " < ", " && ", " &", " # ", ";", "   "];
                if ends.iter().any(|end| rest.starts_with(end)) {
                    return &command[..i];
                }
            }
        }
    }
    command
}

/// Splits a command as a shell does.
pub(crate) fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let (mut quoted, mut begun) = (None, false);
    for c in command.chars() {
        match (c, quoted) {
            ('\'' | '"', None) => (quoted, begun) = (Some(c), true),
            (c, Some(quote)) if c == quote => quoted = None,
            (' ', None) if begun => {
                words.push(String::new());
                begun = false;
            }
            (' ', None) => {}
            (c, _) => {
                words.last_mut().unwrap().push(c);
                begun = true;
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
