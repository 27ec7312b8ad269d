// Where the server listens: a unix socket that only this user may open, or a host and port.
import { chmodSync, statSync, unlinkSync } from 'node:fs'
import type { Server } from 'node:http'
import { connect } from 'node:net'

export type Address = { path: string } | { host: string; port: number }

/** Reads `unix:/path`, `HOST:PORT` or `[IPv6]:PORT`. Throws on anything else. */
export function parseAddress(text: string): Address {
  if (text.startsWith('unix:/')) return { path: text.slice('unix:'.length) }
  const match = /^(?:\[([0-9a-fA-F:.]+)\]|([^:[\]]+)):(\d{1,5})$/.exec(text)
  const port = Number(match?.[3])
  if (!match || port > 65_535) throw new Error(`--listen takes unix:/path or HOST:PORT, not '${text}'.`)
  return { host: match[1] ?? match[2]!, port }
}

/** Listens and returns the address in the form of `--listen`, with the real port where 0 was asked for. */
export async function listen(server: Server, address: Address): Promise<string> {
  if ('path' in address) await removeStaleSocket(address.path)
  // The socket has its mode from its first moment on: between listening and a chmod, others could connect.
  const umask = process.umask(0o177)
  try {
    await new Promise<void>((resolve, reject) => server.once('error', reject).listen(address, () => resolve(void server.off('error', reject))))
  } finally {
    process.umask(umask)
  }
  if ('path' in address) {
    chmodSync(address.path, 0o600)
    return `unix:${address.path}`
  }
  const { port } = server.address() as { port: number }
  return `${address.host.includes(':') ? `[${address.host}]` : address.host}:${port}`
}

async function removeStaleSocket(path: string): Promise<void> {
  if (!statSync(path, { throwIfNoEntry: false })?.isSocket()) return
  const isLive = await new Promise<boolean>((resolve) => {
    const socket = connect(path)
    socket.once('connect', () => {
      socket.destroy()
      resolve(true)
    })
    socket.once('error', () => resolve(false))
  })
  if (isLive) throw new Error(`Another process is listening on ${path}.`)
  unlinkSync(path)
}
