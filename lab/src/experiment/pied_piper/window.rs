//! Checks the client's window as the server sees it, not as it was configured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::download::{Size, Way};
use super::stage::Stage;
use crate::experiment::ExperimentError;
use crate::peer::ss;

/// The pause between two reads. The download takes about fifteen round trips of a quarter of a
/// second.
const PAUSE: Duration = Duration::from_millis(100);

/// Returns the largest receive window that the client advertised to the server during an end-to-end
/// download, in bytes.
pub(super) fn on_the_wire(stage: &Stage) -> Result<u64, ExperimentError> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let download = scope.spawn(|| {
            let result = stage.download(Way::EndToEnd, Size::Mb1);
            over.store(true, Ordering::Relaxed);
            result
        });
        let mut largest = 0;
        let mut looked = Ok(());
        while !over.load(Ordering::Relaxed) {
            match ss::windows_of_peers(stage.world().host("origin")) {
                Ok(windows) => largest = windows.into_iter().fold(largest, u64::max),
                Err(e) => looked = Err(e),
            }
            std::thread::sleep(PAUSE);
        }
        let download = download.join();
        download.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        looked.map_err(ExperimentError::machine("read the client's window"))?;
        Ok(largest)
    })
}
