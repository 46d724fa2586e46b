//! `matrix`, as it is run, where nothing has to be built or measured.

#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs, process};

use flate2::Compression;
use flate2::write::GzEncoder;

/// Two rows with one round each, of as many as are asked for.
fn results(rounds: u32) -> String {
    format!(
        r#"{{
            "command": "cargo matrix plan.toml",
            "host": {{
                "processor": "an abacus", "cores": 2, "kernel": "Linux", "compiler": "rustc",
                "commit": "abc", "date": "today"
            }},
            "server_core": 0, "load_core": 1, "no_calls": "not permitted",
            "workloads": [{{
                "workload": {{
                    "name": "small", "load": "echo --seconds 1", "against": "tokio",
                    "servers": ["tokio", "compio"], "figures": [["cost", "/cost"]]
                }},
                "rounds": {rounds},
                "rows": [
                    {{ "server": "tokio", "rounds": [{{ "Ok": {{ "cost": 2 }} }}] }},
                    {{ "server": "compio", "rounds": [{{ "Ok": {{ "cost": 3 }} }}] }}
                ]
            }}]
        }}"#
    )
}

/// What `matrix` does with them, and the folder it does it in.
fn resume(name: &str, results: &str) -> (Output, PathBuf) {
    let folder = env::temp_dir().join(format!("matrix-{name}-{}", process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("results.json"), results).unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    (matrix.arg("--resume").arg(&folder).output().unwrap(), folder)
}

#[test]
fn a_run_of_which_nothing_is_missing_is_reported_again() {
    let (output, folder) = resume("whole", &results(1));
    assert!(output.status.success(), "{output:?}");
    let markdown = fs::read_to_string(folder.join("report.md")).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), markdown);
    let line = "| compio | 1 of 1 | 3 (3–3) | 1.500 (1.500–1.500) |";
    assert!(markdown.contains(line), "{markdown}");
    assert!(markdown.contains("cost, against tokio: too few rounds to say: compio (1.500)."));
    assert!(markdown.contains("System calls not counted: not permitted."));
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("an abacus") && page.contains("1.500 (1.500–1.500)"), "{page}");
    fs::remove_dir_all(folder).unwrap();
}

fn compare(first: &str, second: &str) -> Output {
    let folder = env::temp_dir().join(format!("matrix-compare-{}", process::id()));
    let files = [folder.join("a.json"), folder.join("b.json")];
    let _ = fs::create_dir(&folder);
    fs::write(&files[0], first).unwrap();
    fs::write(&files[1], second).unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    let output = matrix.arg("compare").args(&files).output().unwrap();
    fs::remove_dir_all(folder).unwrap();
    output
}

#[test]
fn two_runs_are_compared() {
    let rounds = |costs: [u32; 5]| {
        let rounds = costs.map(|cost| format!(r#"{{ "Ok": {{ "cost": {cost} }} }}"#));
        results(5).replace(r#"{ "Ok": { "cost": 3 } }"#, &rounds.join(","))
    };
    let five = |text: String| {
        let two = r#"{ "Ok": { "cost": 2 } }"#;
        text.replace(two, &[two; 5].join(","))
    };
    let (a, b) = (five(rounds([3, 4, 3, 4, 3])), five(rounds([6, 7, 6, 7, 6])));
    let said = String::from_utf8(compare(&a, &a).stdout).unwrap();
    assert!(
        said.contains("\n1 of 1 ratios have confidence intervals that overlap (100.0 %). Of all")
    );
    assert!(said.contains("Of all that there are, A has 1 and B has 1."), "{said}");
    let other = compare(&a, &a.replace("echo --seconds 1", "echo --seconds 2"));
    let said = String::from_utf8(other.stdout).unwrap();
    assert!(said.contains("B: `load echo --seconds 2`") && !said.contains("overlap"), "{said}");
    let said = String::from_utf8(compare(&a, &b).stdout).unwrap();
    let line =
        "| compio | cost | 3 | 6 | 2.000 | 1.500 (1.500–2.000) | 3.000 (3.000–3.500) | **apart** |";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("\n0 of 1 ratios"), "{said}");
    // One of them compressed.
    let file = env::temp_dir().join(format!("matrix-plain-{}.json.gz", process::id()));
    let mut gz = GzEncoder::new(fs::File::create(&file).unwrap(), Compression::fast());
    gz.write_all(a.as_bytes()).unwrap();
    gz.finish().unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    let same = matrix.arg("compare").args([&file, &file]).output().unwrap();
    fs::remove_file(file).unwrap();
    assert!(String::from_utf8(same.stdout).unwrap().contains("\n1 of 1 ratios"));
    // Too few rounds for an interval, and nothing in common.
    let said = String::from_utf8(compare(&results(1), &results(1)).stdout).unwrap();
    assert!(said.contains("| 1.500 (1.500–1.500) | 1.500 (1.500–1.500) | |"), "{said}");
    assert!(!said.contains("overlap"), "{said}");
    let output = compare(&a, &a.replace("\"small\"", "\"large\""));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no row of one is in the other"));
}

#[test]
fn a_run_does_not_go_on_elsewhere() {
    let (output, folder) = resume("elsewhere", &results(2));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("one commit on one machine") && stderr.contains("an abacus"),
        "{stderr}"
    );
    assert!(!folder.join("report.md").exists());
    fs::remove_dir_all(folder).unwrap();
}
