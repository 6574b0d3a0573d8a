//! Texts as people and their tools read them: help, man pages, completions, the progress line.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay_tests::{Bed, PATIENCE, Tier, binary, finish, forebay, needs_forebay, needs_tools};
use forebay_tests::{plain, proof, sample, skip, text, tool};

#[test]
fn man_pages_have_commands_as_they_are_typed() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    let dir = std::env::temp_dir().join(format!("fbt-man-{}", std::process::id()));
    assert!(forebay(&["--help"]).ok().stdout.contains("  man "), "man is in the help");
    forebay(&["man", text(&dir)]).ok();
    let pages = fs::read_dir(&dir).unwrap().count();
    let page = fs::read_to_string(dir.join("forebay-flush.1")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(pages > 30, "{pages}");
    assert!(page.contains(".nh\n"), "{page}");
    let (_, examples) = page.split_once(".SH EXAMPLES\n").expect("a section of its own");
    let first = ".PP\n.nf\n.RS 2\nforebay flush \\-\\-wait /mnt/fast\n";
    assert!(examples.starts_with(first), "{page}");
}

/// A formatted page shows the examples exactly as the help text has them.
#[test]
fn an_example_on_a_formatted_page_can_be_copied() {
    needs_forebay!();
    needs_tools!("man");
    let dir = std::env::temp_dir().join(format!("fbt-page-{}", std::process::id()));
    forebay(&["man", text(&dir)]).ok();
    let page = dir.join("forebay-flush.1");
    let shown = tool("env", &["MANWIDTH=60", "LC_ALL=C", "man", "-l", text(&page)]).ok().stdout;
    fs::remove_dir_all(&dir).unwrap();
    assert!(shown.contains("forebay flush --wait /mnt/fast/results/run-17\n"), "{shown}");
}

#[test]
fn completions_know_benchmarks_and_settings() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = forebay(&["completions", shell]).ok().stdout;
        for word in ["checkpoint", "mdtest", "max-age=", "policy=write-through", "dirty-high"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

/// The completions that bash offers after some words.
fn offered(words: &str) -> String {
    let script = format!(
        "source <({0} completions bash); COMP_WORDS=({1}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _forebay forebay \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; echo \"${{COMPREPLY[@]}}\"",
        text(binary()),
        words
    );
    finish(Command::new("bash").args(["-c", &script]), PATIENCE).ok().stdout
}

#[test]
fn bash_completes_them() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    assert_eq!(offered("forebay bench check").trim(), "checkpoint");
    assert_eq!(offered("forebay set /mnt max-a").trim(), "max-age=");
    assert_eq!(offered("forebay get /mnt dirty-h").trim(), "dirty-high dirty-hard");
}

/// On a terminal of unknown width the line is drawn in place, and never as wide as the terminal.
#[test]
fn the_progress_line_stays_on_its_line() {
    needs_forebay!();
    needs_tools!("script");
    let bed = Bed::new(Tier::Disk);
    let mounted = bed.mount(&["--preset", "hold", "--throttle", "2MB/s,1ms"]);
    for i in 0..4 {
        sample::file(&mounted.at(format!("a-file-{i}")), i, 1 << 20);
    }
    let flush = format!("{} flush --wait {}", text(binary()), text(&mounted.path));
    for (columns, most) in [(0, 79), (40, 39)] {
        sample::file(&mounted.at("again"), columns.into(), 2 << 20);
        let drawn = drawn_on(columns, &flush);
        assert!(drawn.len() > 3, "{drawn:?}");
        assert!(drawn.iter().all(|line| line.len() <= most), "{columns}: {drawn:#?}");
        proof!("{} lines of at most {most}", drawn.len());
    }
    mounted.umount();
}

/// The states of a line that a command redraws on a terminal.
fn drawn_on(columns: u32, command: &str) -> Vec<String> {
    let command = format!("stty cols {columns}; {command}");
    let out = tool("script", &["-qec", &command, text(Path::new("/dev/null"))]).ok().stdout;
    out.split("\r\u{1b}[K").filter(|line| line.contains('%')).map(String::from).collect()
}

#[test]
fn help_texts_of_the_benchmarks_fit_eighty_columns() {
    if plain::on() {
        skip!("plain mode has no forebay");
    }
    let all = forebay(&["bench", "--help"]).ok().stdout;
    let (_, list) = all.split_once("Commands:\n").expect("a list");
    let names: Vec<&str> =
        list.lines().take_while(|line| line.starts_with("  ")).filter_map(first_word).collect();
    assert!(names.len() > 8, "{names:?}");
    let texts = names.iter().map(|name| forebay(&["bench", name, "--help"]).ok().stdout);
    for text in texts.chain([all.clone()]) {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
}

fn first_word(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

#[test]
fn the_usage_of_mount_and_umount_names_all_ways() {
    needs_forebay!();
    for (command, ways) in [
        ("mount", ["<BACKING> <MOUNTPOINT> --tier <DIR>", "<NAME>", "--all"].as_slice()),
        ("umount", &["<MOUNTPOINT|NAME|TIER>", "--all"]),
    ] {
        let help = forebay(&[command, "--help"]).ok().stdout;
        for way in ways {
            let line = format!("forebay {command} [OPTIONS] {way}\n");
            assert!(help.contains(&line), "{line}{help}");
        }
    }
}
