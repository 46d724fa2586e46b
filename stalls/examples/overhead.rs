//! Measures what the detector costs: the time of a beat, the CPU time of its threads while two event loops are idle,
//! and time and memory for the names of a first stack.

use std::time::{Duration, Instant};

use owned_io_stalls::{Config, Detector};

const SECONDS: u64 = 20;

fn main() -> std::io::Result<()> {
    let detector = Detector::start(Config::default())?;
    let heart = detector.watch_current_thread("beats");
    let began = Instant::now();
    for _ in 0..1_000_000 {
        heart.beat();
    }
    println!("beat: {} ns", began.elapsed().as_nanos() / 1_000_000);
    drop(heart);
    for worker in 0..2 {
        let detector = detector.clone();
        std::thread::Builder::new().name(format!("worker-{worker}")).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let heart = detector.watch_current_thread("worker");
            runtime.block_on(async {
                loop {
                    heart.beat();
                    tokio::time::sleep(heart.interval()).await;
                }
            });
            std::io::Result::Ok(())
        })?;
    }
    std::thread::sleep(Duration::from_secs(3)); // the symbols are read once
    let before = ran_ns()?;
    std::thread::sleep(Duration::from_secs(SECONDS));
    for ((name, before), (_, after)) in before.iter().zip(ran_ns()?) {
        println!("{name:16} {:.3} % of a CPU", (after - before) / 1e7 / SECONDS as f64);
    }
    for worker in detector.snapshot().workers {
        println!("{}: {:?}", worker.name, worker.lateness);
    }
    let (before_kib, began) = (resident_kib()?, Instant::now());
    let heart = detector.watch_current_thread("blocks"); // it does not beat
    while detector.incidents().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let found_after = began.elapsed() - heart.interval();
    println!("a stall: reported after {found_after:?}, for {} KiB", resident_kib()? - before_kib);
    Ok(())
}

/// How much memory the process has.
fn resident_kib() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    Ok(line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0))
}

/// The name of each thread, and how long it has run.
fn ran_ns() -> std::io::Result<Vec<(String, f64)>> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?.path();
        let name = std::fs::read_to_string(task.join("comm"))?.trim().to_owned();
        let schedstat = std::fs::read_to_string(task.join("schedstat"))?;
        threads.push((
            name,
            schedstat.split(' ').next().and_then(|ran| ran.parse().ok()).unwrap_or(f64::NAN),
        ));
    }
    Ok(threads)
}
