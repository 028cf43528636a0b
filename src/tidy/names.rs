//! Words that the glossary replaces, looked for inside the names that the code defines.

/// Words that name nothing here; the glossary says what is said instead.
const BANNED: [&str; 11] = [
    "worker", "node", "engine", "manager", "service", "helper", "util", "session", "task", "page", "instance",
];
/// The same for names of types.
const BANNED_IN_TYPES: [&str; 2] = ["context", "handle"];

/// A complaint when a name holds a banned word. Two are banned for types only: `handle` is a verb, and `context` is also
/// how many tokens a model can look back on.
pub(super) fn banned(name: &str) -> Option<String> {
    let of_a_type = name.starts_with(char::is_uppercase) && name.contains(char::is_lowercase);
    let banned = |word: &str| BANNED.contains(&word) || (of_a_type && BANNED_IN_TYPES.contains(&word));
    let found =
        words(name).into_iter().find(|word| banned(word) || word.strip_suffix('s').is_some_and(banned));
    found.map(|word| format!("{name}: `{word}` is not used; see the glossary"))
}

/// The words of a snake_case or CamelCase name, in lower case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut low = false;
    for letter in name.chars() {
        if letter == '_' || (letter.is_uppercase() && low) {
            words.push(String::new());
        }
        low = letter.is_lowercase();
        if letter != '_' {
            words.last_mut().expect("there is always one").extend(letter.to_lowercase());
        }
    }
    words
}

#[test]
fn words_are_found_inside_names() {
    assert!(banned("TaskQueue").is_some());
    assert!(banned("run_tasks").is_some());
    assert!(banned("StreamHandle").is_some());
    assert!(banned("handle").is_none());
    assert!(banned("multitasking").is_none());
}
