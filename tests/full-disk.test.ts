// A disk that is really full, below the whole service: a small filesystem in memory, in a mount namespace of the server's own.
import assert from 'node:assert/strict'
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { root } from '../server/config.ts'
import { client, colourRows, until } from './support/client.ts'
import { tinyModelsDir } from './support/tiny.ts'

const unshare = process.getuid?.() === 0 ? ['-m'] : ['-Urm']
const possible = spawnSync('unshare', [...unshare, 'sh', '-c', 'mount -t tmpfs tmpfs /mnt']).status === 0

test('a full disk refuses what is new and loses nothing; with room again the same server goes on', {
  skip: !possible && 'this machine lets nobody mount a filesystem of their own',
}, async () => {
  const mount = mkdtempSync(path.join(os.tmpdir(), 'tunery-full-'))
  const env = {
    ...process.env,
    TUNERY_DATA_DIR: mount,
    TUNERY_MODELS_DIR: tinyModelsDir(),
    TUNERY_PORT: '0',
    TUNERY_LOG_LEVEL: 'silent',
    TUNERY_MIN_FREE_DISK_MB: '0',
  }
  const script = 'mount -t tmpfs -o size=8m tmpfs "$1" && exec "$2" server/main.ts'
  const server = spawn('unshare', [...unshare, 'sh', '-c', script, 'sh', mount, process.execPath], { cwd: root, env, stdio: ['ignore', 'ignore', 'inherit'] })
  try {
    const data = `/proc/${server.pid}/root${mount}`
    const file = path.join(data, 'server.json')
    await until('the server to listen', () => existsSync(file))
    const { api, upload } = client(JSON.parse(readFileSync(file, 'utf8')).url, readFileSync(path.join(data, 'first-key.txt'), 'utf8').trim())
    const known = (await upload(colourRows(8))).body.id
    const filler = path.join(data, 'filler')
    assert.throws(() => writeFileSync(filler, Buffer.alloc(20e6)), /ENOSPC/)
    const kept: string[] = []
    const refused = await until('the database to take no more', async () => {
      const answer = await api('POST', '/keys', { name: `k${kept.length}` })
      if (answer.status !== 201) return answer
      kept.push(answer.body.id)
      return undefined
    })
    assert.deepEqual([refused.status, refused.body.error.code], [503, 'storage_full'])
    const large = await upload(colourRows(2000))
    assert.deepEqual([large.status, large.body.error.code], [503, 'storage_full'])
    assert.equal((await api('GET', `/datasets/${known}`)).status, 200)
    rmSync(filler)
    assert.equal((await upload(colourRows(2000))).status, 201)
    assert.equal((await api('POST', '/keys', { name: 'room' })).status, 201)
    const ids: string[] = (await api('GET', '/keys?limit=100')).body.items.map(({ id }: { id: string }) => id)
    for (const id of kept) assert.ok(ids.includes(id), id)
    assert.equal((await api('GET', '/datasets/')).body.items.length, 2)
  } finally {
    server.kill('SIGTERM')
    if (server.exitCode === null) await once(server, 'exit')
    rmSync(mount, { recursive: true, force: true })
  }
})
