//! Commands quoted for a shell.

use std::ffi::OsStr;

/// The command line of this process.
pub fn this_command() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument));
    std::iter::once("vit".to_string()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// One word of a command, quoted if necessary.
pub fn quoted(word: &OsStr) -> String {
    let bytes = word.as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-=,:@%+".contains(byte);
    match word.to_str() {
        Some(text) if !text.is_empty() && bytes.iter().all(plain) => text.to_string(),
        Some(text) if !text.contains(char::is_control) => format!("'{}'", text.replace('\'', "'\\''")),
        // Control characters and bytes that are not UTF-8, in the form of bash, zsh and busybox.
        _ => {
            let escaped = bytes.iter().map(|byte| match byte {
                b'\'' | b'\\' => format!("\\{}", char::from(*byte)),
                byte if byte.is_ascii_graphic() || *byte == b' ' => char::from(*byte).to_string(),
                byte => format!("\\x{byte:02x}"),
            });
            format!("$'{}'", escaped.collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn words_are_quoted_where_a_shell_would_change_them() {
        for (word, expected) in [
            ("runs/photos-1", "runs/photos-1"),
            ("length=40 steps", "'length=40 steps'"),
            ("shards/*.tar", "'shards/*.tar'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
            ("日本", "'日本'"),
            ("a\nb", "$'a\\x0ab'"),
        ] {
            assert_eq!(quoted(word.as_ref()), expected, "{word:?}");
        }
    }
}
