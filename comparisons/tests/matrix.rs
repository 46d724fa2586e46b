//! `matrix`, as it is run, where nothing has to be built or measured.

#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Command, Output};
use std::{env, fs, process};

/// Two rows with one round each, of as many as are asked for.
fn results(rounds: u32) -> String {
    format!(
        r#"{{
            "command": "cargo matrix plan.toml",
            "host": {{
                "processor": "an abacus", "cores": 2, "kernel": "Linux", "compiler": "rustc",
                "commit": "abc", "date": "today"
            }},
            "server_core": 0, "load_core": 1,
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
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("an abacus") && page.contains("1.500 (1.500–1.500)"), "{page}");
    fs::remove_dir_all(folder).unwrap();
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
