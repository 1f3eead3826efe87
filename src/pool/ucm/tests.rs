use std::fs;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use super::*;
use crate::kvhash::keys::{Ask, KeyConfig, KeyProfile, KvShape, Preset, PromptBlocks, Store};

/// Paths of a prompt's blocks below `root`, as UCM has them.
fn keys(root: &Path, blocks: u8) -> KeyBatch {
    let preset = Preset::named("ucm-posix").unwrap();
    let mut config = KeyConfig::new(preset, "/models/m", KvShape { block_tokens: 16, ..KvShape::default() });
    config.store = Store::Files { roots: vec![root.to_str().unwrap().to_owned()] };
    let profile = KeyProfile::new(&config).unwrap();
    let hashes: Vec<[u8; 16]> = (0..blocks).map(|n| [n; 16]).collect();
    let mut batch = KeyBatch::default();
    let prompt = PromptBlocks::new(&hashes, u32::from(blocks) * 16);
    profile.keys_of_prompt(&prompt, Ask::Every, &mut batch).unwrap();
    assert_eq!(batch.len(), usize::from(blocks));
    batch
}

fn config(root: &Path, threads: usize) -> UcmConfig {
    UcmConfig { roots: vec![root.to_owned()], threads }
}

fn write(path: &str) {
    fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    fs::write(path, "kv").unwrap();
}

fn all(keys: &KeyBatch) -> Vec<u32> {
    (0..u32::try_from(keys.len()).unwrap()).collect()
}

async fn present<F>(ucm: &Ucm<F>, keys: &KeyBatch) -> Result<Vec<bool>, PoolError>
where
    F: Fn(&Path) -> io::Result<bool> + Clone + Send + Sync + 'static,
{
    Ok(ucm.locate(keys, &all(keys)).await?.iter().map(|placement| placement.present).collect())
}

#[tokio::test]
async fn blocks_are_there_under_their_final_names() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(dir.path(), 20);
    for index in [0, 1, 7, 19] {
        write(keys.get(index).unwrap());
    }
    write(&format!("{}.tmp", keys.get(2).unwrap()));
    for threads in [1, 2, 16] {
        let ucm = Ucm::new(config(dir.path(), threads)).unwrap();
        let found = present(&ucm, &keys).await.unwrap();
        let there: Vec<usize> = (0..20).filter(|index| found[*index]).collect();
        assert_eq!(there, [0, 1, 7, 19]);
        assert_eq!(ucm.locate(&keys, &[]).await, Ok(Vec::new()));
        let picked = ucm.locate(&keys, &[7, 2, 0]).await.unwrap();
        assert_eq!(
            picked,
            [Placement::somewhere(), Placement::default(), Placement::somewhere()],
            "in the order asked"
        );
    }
}

#[tokio::test]
async fn an_empty_store_is_not_a_lost_one() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(&dir.path().join("share"), 3);
    let ucm = Ucm::new(config(&dir.path().join("share"), 2)).unwrap();
    assert!(matches!(present(&ucm, &keys).await, Err(PoolError::Unreachable(_))));
    fs::create_dir(dir.path().join("share")).unwrap();
    assert_eq!(present(&ucm, &keys).await, Ok(vec![false; 3]));
}

#[tokio::test]
async fn nothing_outside_of_the_roots_is_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let looked = |_: &Path| -> io::Result<bool> { panic!("looked at a file") };
    let ucm = Ucm::with(config(&dir.path().join("a"), 1), looked).unwrap();
    for root in [dir.path().join("b"), dir.path().join("a/../b")] {
        assert!(matches!(present(&ucm, &keys(&root, 1)).await, Err(PoolError::Refused(_))));
    }
}

#[tokio::test]
async fn errors_of_the_file_system_are_no_absence() {
    let dir = tempfile::tempdir().unwrap();
    let stale = |_: &Path| -> io::Result<bool> { Err(io::Error::from(ErrorKind::StaleNetworkFileHandle)) };
    let ucm = Ucm::with(config(dir.path(), 4), stale).unwrap();
    for _ in 0..8 {
        assert!(matches!(present(&ucm, &keys(dir.path(), 20)).await, Err(PoolError::Unreachable(_))));
    }
}

/// Two threads before a mount of which one call each hangs until both barriers are met.
fn hung(
    root: &Path,
    barriers: [Arc<Barrier>; 2],
) -> Ucm<impl Fn(&Path) -> io::Result<bool> + Clone + Send + Sync + use<>> {
    let calls = Arc::new(AtomicUsize::new(0));
    let look = move |_: &Path| {
        if calls.fetch_add(1, Ordering::Relaxed) < 2 {
            barriers.iter().for_each(|barrier| {
                barrier.wait();
            });
        }
        Ok(true)
    };
    Ucm::with(config(root, 2), look).unwrap()
}

async fn meet(barrier: &Arc<Barrier>) {
    let barrier = barrier.clone();
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
}

const AT_MOST: std::time::Duration = std::time::Duration::from_secs(20);

#[tokio::test]
async fn a_hung_mount_holds_its_threads_and_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(dir.path(), 20);
    let [entered, gate] = [Arc::new(Barrier::new(3)), Arc::new(Barrier::new(3))];
    let ucm = hung(dir.path(), [entered.clone(), gate.clone()]);
    let mut nobody = Context::from_waker(Waker::noop());
    {
        // The asker leaves when both threads hang.
        let mut asked = Box::pin(present(&ucm, &keys));
        assert!(asked.as_mut().poll(&mut nobody).is_pending());
        meet(&entered).await;
    }
    assert_eq!(ucm.permits.available_permits(), 0, "the calls still hang");
    // Others wait for a thread, so many of them and no more; who leaves makes room.
    let mut waiting: Vec<_> = (0..MAX_WAITING).map(|_| Box::pin(present(&ucm, &keys))).collect();
    assert!(waiting.iter_mut().all(|asked| asked.as_mut().poll(&mut nobody).is_pending()));
    assert_eq!(present(&ucm, &keys).await, Err(PoolError::Busy));
    waiting.truncate(1);
    // The mount comes back. One call of each thread was under way; nobody wants the rest.
    meet(&gate).await;
    let first = waiting.remove(0);
    assert_eq!(tokio::time::timeout(AT_MOST, first).await.unwrap(), Ok(vec![true; 20]));
    assert_eq!(tokio::time::timeout(AT_MOST, present(&ucm, &keys)).await.unwrap(), Ok(vec![true; 20]));
    assert!(tokio::time::timeout(AT_MOST, ucm.permits.acquire_many(2)).await.unwrap().is_ok());
}

#[tokio::test]
async fn many_parts_of_a_question_wait_for_their_turn() {
    let dir = tempfile::tempdir().unwrap();
    let keys = keys(dir.path(), 200);
    write(keys.get(150).unwrap());
    let ucm = Ucm::new(config(dir.path(), 2)).unwrap();
    let indexes = all(&keys);
    let parts = try_join_all(indexes.chunks(BATCH_KEYS).map(|part| ucm.locate(&keys, part)));
    let found: Vec<bool> = parts.await.unwrap().concat().iter().map(|at| at.present).collect();
    assert_eq!(found.iter().position(|there| *there), Some(150));
}
