//! Serves blocks, like the servers of a synchronized read.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

/// The largest block.
const MOST: u32 = 16 << 20;

/// Serves every client: for each number (four bytes, big-endian) it sends a block of that many
/// bytes.
pub(super) fn serve(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            // The thread ends with its connection.
            let _ = std::thread::Builder::new().spawn(move || blocks(stream));
        }
    };
    std::thread::Builder::new().spawn(accept)?;
    Ok(())
}

fn blocks(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut block = Vec::new();
    loop {
        let mut len = [0; 4];
        stream.read_exact(&mut len)?;
        block.resize(u32::from_be_bytes(len).min(MOST) as usize, 0);
        stream.write_all(&block)?;
    }
}
