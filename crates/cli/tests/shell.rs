//! Completions and man pages.

mod support;

use std::collections::BTreeSet;
use std::fs;

use support::vit;

/// The commands that a help lists.
fn commands(arguments: &[&str]) -> Vec<String> {
    let help = vit(arguments.iter().chain(&["--help"])).code(0).out;
    let lines = help.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names = lines.filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    names.filter_map(|l| Some(l.split_whitespace().next()?.to_owned())).filter(|name| name != "help").collect()
}

/// The names of the pages of a command and those below it.
fn pages(arguments: &[&str]) -> BTreeSet<String> {
    let below = commands(arguments).into_iter().flat_map(|name| pages(&[arguments, &[&name]].concat()));
    let own = std::iter::once("vit").chain(arguments.iter().copied()).collect::<Vec<_>>().join("-");
    below.chain([format!("{own}.1")]).collect()
}

#[test]
fn every_command_has_a_man_page_with_its_examples() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("man1");
    let run = vit(["man".as_ref(), folder.as_os_str()]).code(0);
    let written: BTreeSet<String> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(written, pages(&[]));
    assert!(written.contains("vit-train.1") && written.contains("vit-recipes-show.1"));
    assert!(run.err.contains(&format!("{} pages", written.len())), "{}", run.err);
    for name in written {
        let page = fs::read_to_string(folder.join(&name)).unwrap();
        let command = name.trim_end_matches(".1");
        assert!(page.contains(&format!(".TH {command} 1 ")), "{page}");
        for section in ["NAME", "SYNOPSIS", "OPTIONS"] {
            assert!(page.contains(&format!("\n.SH {section}\n")), "{name}: {section}");
        }
        // `vit bench data` and its like have none.
        let words: Vec<&str> = command.split('-').collect();
        let has_examples = vit(words[1..].iter().chain(&["--help"])).code(0).out.contains("\nExample");
        let example = format!("\n.nf\n  {}", words.join(" "));
        assert!(!has_examples || page.contains("\n.SH EXAMPLES\n") && page.contains(&example), "{page}");
    }
}

#[test]
fn scripts_of_all_shells_have_all_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = vit(["completions", shell]).code(0).out;
        for command in commands(&[]) {
            assert!(script.contains(&command), "{shell}: {command}");
        }
        assert!(script.contains("image-size") && script.contains("show"), "{shell}");
    }
    let unknown = vit(["completions", "tcsh"]).code(2);
    assert!(unknown.err.contains("bash, elvish, fish, powershell, zsh"), "{}", unknown.err);
}

#[cfg(unix)]
#[test]
fn bash_completes_commands_and_options() {
    use std::process::{Command, Stdio};

    if !Command::new("bash").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        println!("not tested: there is no bash");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("vit");
    fs::write(&script, vit(["completions", "bash"]).code(0).out).unwrap();
    assert!(Command::new("bash").arg("-n").arg(&script).status().unwrap().success());
    // As bash calls the function, with the words of the line and the number of the one at the cursor.
    let complete = |words: &[&str]| {
        let call = r#"source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _vit vit "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"; printf '%s\n' "${COMPREPLY[@]}""#;
        let output = Command::new("bash").args(["-c", call, "bash"]).arg(&script).args(words).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(complete(&["vit", "cla"]), ["classify"]);
    assert_eq!(complete(&["vit", "train", "--rec"]), ["--recipe", "--recompute"]);
    assert_eq!(complete(&["vit", "recipes", "sh"]), ["show"]);
}
