//! An outsider, whose key is not that of a member, at the mesh port. Its connections are silent,
//! slow, noisy, use another protocol, or replay what a member has sent.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};
use taut_mesh::channel::MAX_RECORD;
use taut_mesh::dialler::Dialler;
use taut_mesh::hello::{DEFAULT_HOPS, Hello, SessionId, Target};
use taut_mesh::identity::PrivateKey;
use taut_mesh::members::Members;
use taut_mesh::tls::DialTls;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use super::plan::{Plan, Side, Storm};
use super::rig::{RECORDED, Rig};
use crate::experiment::sessions::ends::{Run, runtime};

/// The number of bytes of a noisy connection.
const NOISE: usize = 1 << 20;
/// The pause between two bytes of a slow connection.
const DRIP: Duration = Duration::from_millis(200);
/// How long the relay may take to close a connection. Its `handshake_timeout` is 5 s.
const LIFE: Duration = Duration::from_secs(15);
/// The maximum number of open connections; further connections wait.
pub(super) const AT_ONCE: usize = 1_000;
/// The longest answer to a recorded ClientHello, in bytes: the relay's messages of one handshake
/// (RFC 8446 section 2), of which the key share is 1,120 bytes, and an alert.
const FLIGHT: u64 = 2_048;
/// The longest answer without a recording, in bytes: an alert in the clear (RFC 8446 section 6).
const ALERT: u64 = 7;
/// How long a relay may take to refuse the key of a recording. A round trip to it takes 2 ms.
const REFUSAL: Duration = Duration::from_millis(200);

/// The results of the attack.
#[derive(Clone, Debug, Default)]
pub(super) struct Attack {
    pub(super) connections: u64,
    /// Connections that were refused, or reset before they were established.
    pub(super) refused: u64,
    /// Replayed recordings.
    pub(super) replays: u64,
    /// Bytes that the relay sent beyond [`FLIGHT`] on connections with a recording, and beyond
    /// [`ALERT`] on others.
    pub(super) heard: u64,
    /// The largest number of bytes that the relay sent on a connection with a recording, and on
    /// others.
    pub(super) most_heard: [u64; 2],
    /// Connections that the relay did not close in time.
    pub(super) kept: u64,
}

#[derive(Clone, Copy)]
enum Manner {
    Silent,
    Dripping,
    Noisy,
    OtherProtocol,
    Replay,
}

/// What a member has sent on one connection.
struct Recording {
    /// The ClientHello.
    opening: Vec<u8>,
    /// The member's key and signature, and the hello.
    rest: Vec<u8>,
}

/// How a connection of the outsider ended.
struct Met {
    heard: u64,
    closed: bool,
}

/// Attacks at the planned times. Must be called in the outsider's namespace.
pub(super) fn attack(plan: &Plan, rig: &Rig, run: &Arc<Run>) -> io::Result<Attack> {
    runtime()?.block_on(LocalSet::new().run_until(async {
        let mut attack = Attack::default();
        for (number, storm) in (0..).zip(&plan.storms) {
            if !run.until(storm.at).await {
                break;
            }
            // Each storm needs a new recording: after a rotation of its key, the relay might refuse
            // an old one for its key alone.
            let recording = record(rig).await.ok().map(Rc::new);
            one(
                *storm,
                plan.seed ^ number,
                rig.mesh_port(),
                recording,
                &mut attack,
            )
            .await;
        }
        Ok(attack)
    }))
}

async fn one(
    storm: Storm,
    seed: u64,
    to: SocketAddr,
    recording: Option<Rc<Recording>>,
    attack: &mut Attack,
) {
    let began = Instant::now();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut open = JoinSet::new();
    for n in 0..storm.connections {
        tokio::time::sleep_until((began + storm.time * n / storm.connections).into()).await;
        let Ok(place) = room.clone().acquire_owned().await else {
            break;
        };
        let manner = match n % 50 {
            0 => Manner::Noisy,
            1..=4 => Manner::Replay,
            5..=9 => Manner::Dripping,
            10..=14 => Manner::OtherProtocol,
            _ => Manner::Silent,
        };
        let manner = match (manner, &recording) {
            (Manner::Replay, None) => Manner::Silent,
            _ => manner,
        };
        let recording = recording.clone();
        let seed = seed.wrapping_mul(1 << 20).wrapping_add(u64::from(n));
        open.spawn_local(async move {
            let met = meet(to, manner, recording.as_deref(), seed).await;
            drop(place);
            (manner, met)
        });
        while let Some(Ok((manner, met))) = open.try_join_next() {
            attack.count(manner, met);
        }
    }
    while let Some(Ok((manner, met))) = open.join_next().await {
        attack.count(manner, met);
    }
}

/// Makes one connection. Returns `None` if it was not established.
async fn meet(
    to: SocketAddr,
    manner: Manner,
    recording: Option<&Recording>,
    seed: u64,
) -> Option<Met> {
    let connecting = tokio::time::timeout(LIFE, TcpStream::connect(to));
    let mut stream = connecting.await.ok()?.ok()?;
    let mut heard = 0;
    let (mut from, mut into) = stream.split();
    let speak = async {
        // Writing may fail, because the relay is expected to cut the connection.
        match (manner, recording) {
            (Manner::Silent, _) | (Manner::Replay, None) => {}
            (Manner::Dripping, _) => drip(&mut into).await,
            (Manner::Noisy, _) => {
                let mut noise = vec![0; NOISE];
                let mut random = Pcg64Mcg::seed_from_u64(seed);
                random.fill_bytes(&mut noise);
                let _ = into.write_all(&noise).await;
            }
            (Manner::OtherProtocol, _) => {
                let _ = into
                    .write_all(b"GET / HTTP/1.1\r\nHost: relay\r\n\r\n")
                    .await;
            }
            (Manner::Replay, Some(recording)) => {
                let _ = into.write_all(&recording.opening).await;
                let _ = into.write_all(&recording.rest).await;
            }
        }
    };
    let listen = async {
        let mut bytes = [0; 512];
        // An error is an RST, which closes the connection too.
        while let Ok(n @ 1..) = from.read(&mut bytes).await {
            heard += n as u64;
        }
    };
    let both = async {
        let mut listen = std::pin::pin!(listen);
        tokio::select! {
            () = &mut listen => return,
            () = speak => {}
        }
        listen.await;
    };
    let closed = tokio::time::timeout(LIFE, both).await.is_ok();
    Some(Met { heard, closed })
}

/// Sends the start of a PROXY protocol header byte by byte, followed by bytes that do not belong to
/// one.
async fn drip(into: &mut tokio::net::tcp::WriteHalf<'_>) {
    let signature = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\x50";
    for byte in signature.iter().copied().chain(std::iter::repeat(0)) {
        if into.write_all(&[byte]).await.is_err() {
            return;
        }
        tokio::time::sleep(DRIP).await;
    }
}

/// Records what a member sends, up to a hello that names the trap as its destination.
async fn record(rig: &Rig) -> io::Result<Recording> {
    let own = PrivateKey::load(&rig.key_file(RECORDED)).map_err(io::Error::other)?;
    let list = fs::read_to_string(rig.members_file(Side::Far))?;
    let members = Members::parse(&list).map_err(io::Error::other)?;
    let far = members.by_name(Side::Far.name());
    let far = far.ok_or(io::ErrorKind::NotFound)?;
    let tls = DialTls::new(&own, &far.keys);
    let work = async {
        let mut opening = Vec::new();
        let dialler = Dialler::new(&tls, Instant::now(), LIFE, &mut opening);
        let mut dialler = dialler.map_err(io::Error::other)?;
        let mut stream = TcpStream::connect(rig.mesh_port()).await?;
        stream.write_all(&opening).await?;
        let (mut rest, mut plain) = (Vec::new(), vec![0; MAX_RECORD]);
        loop {
            let mut bytes = dialler.partial().to_vec();
            let held = bytes.len();
            bytes.resize(MAX_RECORD, 0);
            let n = stream.read(&mut bytes[held..]).await?;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (arrived, now) = (&mut bytes[..held + n], Instant::now());
            let mut reply = Vec::new();
            let done = dialler.receive(arrived, &mut plain, now, &mut reply);
            stream.write_all(&reply).await?;
            rest.append(&mut reply);
            if done.map_err(io::Error::other)? {
                break;
            }
        }
        // Only a relay that refuses the key has anything to say now.
        if let Ok(refused) = tokio::time::timeout(REFUSAL, stream.read(&mut plain)).await {
            return Err(refused
                .err()
                .unwrap_or(io::ErrorKind::PermissionDenied.into()));
        }
        let hello = Hello {
            source: SocketAddr::from(([192, 0, 2, 1], 1234)),
            destination: Target::Addr(rig.trap()),
            receiver: far.name.clone(),
            route: Vec::new(),
            hops_left: DEFAULT_HOPS,
            session: SessionId([0; 16]),
            passed: Default::default(),
        };
        let ready = dialler.ready().ok_or(io::ErrorKind::InvalidData)?;
        let (mut hello, _) = ready.hello(&hello).map_err(io::Error::other)?;
        rest.append(&mut hello);
        Ok(Recording { opening, rest })
    };
    tokio::time::timeout(LIFE, work).await?
}

// === impl Attack ===

impl Attack {
    fn count(&mut self, manner: Manner, met: Option<Met>) {
        self.connections += 1;
        let Some(met) = met else {
            self.refused += 1;
            return;
        };
        let replayed = matches!(manner, Manner::Replay);
        let may_hear = if replayed { FLIGHT } else { ALERT };
        let most = &mut self.most_heard[usize::from(!replayed)];
        *most = met.heard.max(*most);
        self.replays += u64::from(replayed);
        self.heard += met.heard.saturating_sub(may_hear);
        self.kept += u64::from(!met.closed);
    }
}
