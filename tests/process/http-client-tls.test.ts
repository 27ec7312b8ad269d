// An upstream behind TLS: asked only where its certificate is trusted and is its own.
import assert from 'node:assert/strict'
import { execFile, execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import https from 'node:https'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-tls-'))
const certificate = path.join(folder, 'certificate.pem')
let server: https.Server | undefined
let asked = 0

const skip =
  spawnSync('openssl', ['version']).status === 0 ? false : 'openssl, which makes the certificate, is not installed'

before(async () => {
  if (skip) return
  const key = path.join(folder, 'key.pem')
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost']
  execFileSync(
    'openssl',
    [
      'req',
      '-x509',
      '-newkey',
      'ec',
      '-pkeyopt',
      'ec_paramgen_curve:P-256',
      '-nodes',
      '-days',
      '2',
      ...names,
      '-keyout',
      key,
      '-out',
      certificate,
    ],
    {
      stdio: 'pipe',
    },
  )
  const made = https.createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, (_, response) => {
    asked++
    response.end('{"ok":true}')
  })
  server = made
  await new Promise<void>((resolve) => made.listen(0, resolve))
})
after(() => {
  server?.closeAllConnections()
  server?.close()
  rmSync(folder, { recursive: true })
})

/** Asks from a process of its own, since what is trusted is settled when one starts. */
async function ask(hostname: string, trusted: boolean): Promise<string> {
  const module = (name: string) =>
    JSON.stringify(new URL(`../../server/inference/replicas/http-client/${name}.ts`, import.meta.url).href)
  const { port } = server!.address() as AddressInfo
  const script = `
    const { send, readAll } = await import(${module('client')})
    const { createConnections } = await import(${module('connection-pool')})
    const connections = createConnections({ hostname: ${JSON.stringify(hostname)}, port: ${port}, secure: true }, 1000)
    const signal = new AbortController().signal
    try {
      const answer = await send(connections, { method: 'POST', path: '/', payload: '{}' }, signal)
      console.log(String(await readAll(answer)))
    } catch (error) {
      console.log(error.constructor.name, error.taken)
    }
    connections.close()`
  const env = { ...process.env, ...(trusted && { NODE_EXTRA_CA_CERTS: certificate }) }
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { env })
  return stdout.trim()
}

test('a server with a trusted certificate of its name is asked; without trust, or by another name, no request reaches it', {
  skip,
}, async () => {
  assert.equal(await ask('localhost', true), '{"ok":true}')
  assert.equal(asked, 1)
  assert.equal(await ask('localhost', false), 'NotAnswered false', 'not trusted')
  assert.equal(await ask('127.0.0.1', true), 'NotAnswered false', 'of another name')
  assert.equal(asked, 1)
})
