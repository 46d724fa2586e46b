//! The program `matrix`, as far as it neither builds nor measures.

#![cfg(target_os = "linux")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs, process};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// A round with this server CPU per message.
fn round(cpu_ns: u32) -> Value {
    let used = json!({
        "user_ns": 0, "system_ns": 0, "tick_ns": 0, "on_cpu_ns": null, "cpu_percent": 0.0,
        "switches_voluntary": 0, "switches_involuntary": 0, "threads": 1, "threads_ended": 0,
        "rss_kib_before": 0, "rss_kib": 0, "rss_peak_kib": 0,
    });
    let mut server = used.clone();
    server["per_message"] = json!({
        "cpu_ns": cpu_ns, "user_ns": 0.0, "system_ns": 0.0, "tick_ns": 0.0, "switches": 0.0,
    });
    json!({ "Ok": {
        "report": {
            "command": ["load"], "seconds": 1.0, "wrong": 0, "warnings": [],
            "connections": { "wanted": 1, "opened": 1, "errors": {} },
            "client": used, "server": server,
        },
        "startup_ms": 1.0, "program_bytes": null,
    } })
}

/// Two rows with one round for each CPU figure, of `rounds` planned ones.
fn results(rounds: u32, tokio: &[u32], compio: &[u32]) -> Value {
    let server = |name: &str| {
        json!({
            "name": name, "runtime": name, "protocol": "tcp", "build": ["true"],
            "optional": false, "run": [name], "versions": [],
        })
    };
    let rows = [("tokio", None, tokio), ("compio", Some("tokio"), compio)];
    let planned =
        rows.map(|(name, baseline, _)| json!({ "server": server(name), "baseline": baseline }));
    let measured = rows.map(|(name, baseline, costs)| {
        let rounds: Vec<_> = costs.iter().copied().map(round).collect();
        json!({ "server": server(name), "baseline": baseline, "rounds": rounds })
    });
    json!({
        "format": 2,
        "command": "cargo matrix plan.toml",
        "host": {
            "processor": "an abacus", "cores": 2, "kernel": "Linux", "compiler": "rustc",
            "commit": "abc", "date": "today", "versions": [],
        },
        "server_core": 0, "load_core": 1, "no_calls": "not permitted",
        "workloads": [{
            "workload": {
                "name": "small", "baseline": "tokio", "rows": planned, "rounds": rounds,
                "load": { "command": "echo", "connections": 1, "payload": 1, "seconds": 1.0 },
                "tls_resume": false, "figures": ["cpu-per-message"],
                "titles": { "cpu-per-message": "cost" }, "open_files": null, "sweep": null,
            },
            "rounds": rounds,
            "rows": measured,
        }],
    })
}

/// Runs `matrix --resume` on these results; its output and the folder.
fn resume(name: &str, results: &Value) -> (Output, PathBuf) {
    let folder = env::temp_dir().join(format!("matrix-{name}-{}", process::id()));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("results.json"), results.to_string()).unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    (matrix.arg("--resume").arg(&folder).output().unwrap(), folder)
}

#[test]
fn resuming_a_complete_run_writes_its_reports_again() {
    let (output, folder) = resume("whole", &results(1, &[2], &[3]));
    assert!(output.status.success(), "{output:?}");
    let markdown = fs::read_to_string(folder.join("report.md")).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("a  small (cost, against tokio)\n           a\ncompio  1.50?\n"),
        "{text}"
    );
    let last = format!("Report: {}", folder.join("report.html").display());
    assert_eq!(text.lines().last(), Some(&*last));
    let line = "| compio | 1 of 1 | 3 (3–3) | 1.500 (1.500–1.500) |";
    assert!(markdown.contains(line), "{markdown}");
    assert!(markdown.contains("cost, against tokio: too few rounds to say: compio (1.500)."));
    assert!(markdown.contains("System calls not counted: not permitted."));
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("an abacus") && page.contains("1.500 (1.500–1.500)"), "{page}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn reports_name_the_congestion_control_and_warn_of_one_that_paces() {
    let reports = |congestion_control: Option<&str>| {
        let name = congestion_control.unwrap_or("unnamed");
        let mut results = results(1, &[2], &[3]);
        if let Some(name) = congestion_control {
            results["host"]["congestion_control"] = name.into();
        }
        let (output, folder) = resume(name, &results);
        assert!(output.status.success(), "{output:?}");
        let [markdown, page] =
            ["report.md", "report.html"].map(|file| fs::read_to_string(folder.join(file)).unwrap());
        fs::remove_dir_all(folder).unwrap();
        (markdown, page)
    };
    let warning = "which paces what is sent";

    let (markdown, page) = reports(Some("bbr"));
    assert!(markdown.contains(", TCP bbr,") && markdown.contains(warning), "{markdown}");
    assert!(page.contains("TCP congestion control") && page.contains(warning), "{page}");

    let (markdown, page) = reports(Some("cubic"));
    assert!(markdown.contains(", TCP cubic,") && !markdown.contains(warning), "{markdown}");
    assert!(page.contains("TCP congestion control") && !page.contains(warning), "{page}");

    // Results of before 2026-11-28.
    let (markdown, page) = reports(None);
    assert!(!markdown.contains(", TCP") && !markdown.contains(warning), "{markdown}");
    assert!(!page.contains("TCP congestion control") && !page.contains(warning), "{page}");
}

#[test]
fn a_report_is_written_again_from_compressed_results() {
    let folder = env::temp_dir().join(format!("matrix-report-{}", process::id()));
    let other = folder.join("other");
    fs::create_dir_all(&other).unwrap();
    let file = folder.join("results.json.gz");
    let mut gz = GzEncoder::new(fs::File::create(&file).unwrap(), Compression::fast());
    gz.write_all(results(1, &[2], &[3]).to_string().as_bytes()).unwrap();
    gz.finish().unwrap();
    for (to, written) in [(None, &folder), (Some(&other), &other)] {
        let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
        matrix.arg("report").arg(&file);
        let output =
            matrix.args(to.iter().flat_map(|to| [Path::new("--to"), to])).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let page = fs::read_to_string(written.join("report.html")).unwrap();
        assert!(page.contains("1.500 of tokio (1.500 to 1.500), too few rounds to say"), "{page}");
        assert!(written.join("report.md").exists());
        fs::remove_file(written.join("report.html")).unwrap();
    }
    fs::remove_dir_all(folder).unwrap();
}

fn compare(first: &Value, second: &Value) -> Output {
    let folder = env::temp_dir().join(format!("matrix-compare-{}", process::id()));
    let files = [folder.join("a.json"), folder.join("b.json")];
    let _ = fs::create_dir(&folder);
    fs::write(&files[0], first.to_string()).unwrap();
    fs::write(&files[1], second.to_string()).unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    let output = matrix.arg("compare").args(&files).output().unwrap();
    fs::remove_dir_all(folder).unwrap();
    output
}

#[test]
fn two_runs_are_compared() {
    let five = |costs: [u32; 5]| results(5, &[2; 5], &costs);
    let (a, b) = (five([3, 4, 3, 4, 3]), five([6, 7, 6, 7, 6]));
    let text = String::from_utf8(compare(&a, &a).stdout).unwrap();
    assert!(
        text.contains("\n1 of 1 ratios have confidence intervals that overlap (100.0 %). Of all")
    );
    assert!(text.contains("Of all that there are, A has 1 and B has 1."), "{text}");
    let mut longer = a.clone();
    longer["workloads"][0]["workload"]["load"]["seconds"] = 2.0.into();
    let text = String::from_utf8(compare(&a, &longer).stdout).unwrap();
    assert!(text.contains("--seconds 2 ") && !text.contains("overlap"), "{text}");
    let text = String::from_utf8(compare(&a, &b).stdout).unwrap();
    let line =
        "| compio | cost | 3 | 6 | 2.000 | 1.500 (1.500–2.000) | 3.000 (3.000–3.500) | **apart** |";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\n0 of 1 ratios"), "{text}");
    // Compressed files.
    let file = env::temp_dir().join(format!("matrix-plain-{}.json.gz", process::id()));
    let mut gz = GzEncoder::new(fs::File::create(&file).unwrap(), Compression::fast());
    gz.write_all(a.to_string().as_bytes()).unwrap();
    gz.finish().unwrap();
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_matrix"));
    let same = matrix.arg("compare").args([&file, &file]).output().unwrap();
    fs::remove_file(file).unwrap();
    assert!(String::from_utf8(same.stdout).unwrap().contains("\n1 of 1 ratios"));
    // Too few rounds for an interval, and nothing in common.
    let few = results(1, &[2], &[3]);
    let text = String::from_utf8(compare(&few, &few).stdout).unwrap();
    assert!(text.contains("| 1.500 (1.500–1.500) | 1.500 (1.500–1.500) | |"), "{text}");
    assert!(!text.contains("overlap"), "{text}");
    let mut large = a.clone();
    large["workloads"][0]["workload"]["name"] = "large".into();
    let output = compare(&a, &large);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no row of one is in the other"));
}

#[test]
fn a_run_does_not_resume_on_another_machine() {
    let (output, folder) = resume("elsewhere", &results(2, &[2], &[3]));
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("one commit on one machine") && stderr.contains("an abacus"),
        "{stderr}"
    );
    assert!(!folder.join("report.md").exists());
    fs::remove_dir_all(folder).unwrap();
}

/// The error message of `matrix` for a plan that it must refuse.
fn refused(name: &str, plan: &str) -> String {
    let file = env::temp_dir().join(format!("matrix-{name}-{}.toml", process::id()));
    fs::write(&file, plan).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_matrix")).arg(&file).output().unwrap();
    fs::remove_file(file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_plan_is_refused_before_anything_is_built_or_measured() {
    let plan = r#"
        [[workload]]
        name = "small"
        load = { command = "echo", connections = 1, payload = 1, seconds = 1 }
        servers = ["tokio"]
        baseline = "tokio"
        figures = ["cpu-per-message"]
    "#;
    for (name, right, wrong, why) in [
        ("figure", "cpu-per-message", "cpu-per-masage", "no figure \"cpu-per-masage\": it has"),
        ("server", "\"tokio\"", "\"tokoi\"", "no server \"tokoi\": there are tokio, "),
        ("option", "\"tokio\"", "\"tokio/tls2\"", "no option \"tls2\": it has again, "),
        ("load", "payload", "paylode", "unknown field `paylode`, expected one of `payload`"),
    ] {
        let error = refused(name, &plan.replace(right, wrong));
        let file = format!("matrix-{name}-");
        assert!(
            error.contains(why) && error.contains(&file) && error.contains("\"small\""),
            "{error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}
