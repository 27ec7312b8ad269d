// A server whose data folder is its own disk: a small tmpfs in the server's own mount namespace.
import { execFileSync, spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { root } from '../../lib/root.ts'
import { client, until } from './client.ts'
import { tinyModelsDir } from './tiny.ts'

const isRoot = process.getuid?.() === 0
const unshare = isRoot ? ['-m'] : ['-Urm']
const enter = isRoot ? ['-m'] : ['-Um', '--preserve-credentials']

/** Options of a test that needs such a disk. */
export const smallDiskTest = {
  skip:
    spawnSync('unshare', [...unshare, 'sh', '-c', 'mount -t tmpfs tmpfs /mnt']).status !== 0 &&
    'this machine does not allow mounting a filesystem',
}

/** Starts a server on a disk of `size_mb`. */
export async function startOnSmallDisk(size_mb: number, settings: Record<string, string> = {}) {
  const mount = mkdtempSync(path.join(os.tmpdir(), 'tunery-full-'))
  const env = {
    ...process.env,
    TUNERY_DATA_DIR: mount,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'silent',
    TUNERY_MIN_FREE_DISK_MB: '0',
    ...settings,
  }
  const script = `mount -t tmpfs -o size=${size_mb}m tmpfs "$1" && exec "$2" server/main.ts`
  const server = spawn('unshare', [...unshare, 'sh', '-c', script, 'sh', mount, process.execPath], {
    cwd: root,
    env,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  // The server's data folder as this process sees it.
  const data = `/proc/${server.pid}/root${mount}`
  const file = path.join(data, 'server.json')
  await until('the server to listen', () => existsSync(file))
  const { url } = JSON.parse(readFileSync(file, 'utf8')) as { url: string }
  const key = readFileSync(path.join(data, 'first-key.txt'), 'utf8').trim()
  const figures = (format: string) => Number(spawnSync('stat', ['-f', '-c', format, data], { encoding: 'utf8' }).stdout)
  return {
    ...client(url, key),
    server,
    url,
    key,
    data,
    blocksFree: () => figures('%a'),
    mbFree: () => (figures('%a') * figures('%S')) / 1e6,
    /** Runs `./tunery` with these arguments and `--json` where the server sees its disk, and parses its output. */
    tunery: (...words: string[]) =>
      JSON.parse(
        execFileSync('nsenter', ['-t', String(server.pid), ...enter, path.join(root, 'tunery'), ...words, '--json'], {
          cwd: root,
          env,
          encoding: 'utf8',
        }),
      ),
    async stop() {
      server.kill('SIGTERM')
      if (server.exitCode === null) await once(server, 'exit')
      rmSync(mount, { recursive: true, force: true })
    },
  }
}
