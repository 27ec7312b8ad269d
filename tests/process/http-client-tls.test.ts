// TLS to upstreams: requests are sent only if the certificate is trusted and matches the host name.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import https from 'node:https'
import type { AddressInfo } from 'node:net'
import os from 'node:os'
import path from 'node:path'
import { after, before, test } from 'node:test'
import { promisify } from 'node:util'
import { makeCertificate, noOpenssl } from '../support/certificate.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-tls-'))
let certificate: string
let server: https.Server | undefined
let requests = 0

before(async () => {
  if (noOpenssl) return
  const pair = makeCertificate(folder, 'localhost')
  certificate = pair.certificate
  const listener = https.createServer(
    { key: readFileSync(pair.key), cert: readFileSync(certificate) },
    (_, response) => {
      requests++
      response.end('{"ok":true}')
    },
  )
  server = listener
  await new Promise<void>((resolve) => listener.listen(0, resolve))
})
after(() => {
  server?.closeAllConnections()
  server?.close()
  rmSync(folder, { recursive: true })
})

/** Sends a request from a new process, because trusted certificates are read at process start. */
async function request(hostname: string, trusted: boolean): Promise<string> {
  const module = (name: string) =>
    JSON.stringify(new URL(`../../server/features/serving/http-client/${name}.ts`, import.meta.url).href)
  const { port } = server!.address() as AddressInfo
  const script = `
    const { send, readAll } = await import(${module('client')})
    const { createConnectionPool } = await import(${module('connection-pool')})
    const pool = createConnectionPool({ hostname: ${JSON.stringify(hostname)}, port: ${port}, secure: true }, 1000)
    const signal = new AbortController().signal
    try {
      const answer = await send(pool, { method: 'POST', path: '/', payload: '{}' }, signal)
      console.log(String(await readAll(answer)))
    } catch (error) {
      console.log(error.constructor.name, error.mayHaveStarted)
    }
    pool.close()`
  const env = { ...process.env, ...(trusted && { NODE_EXTRA_CA_CERTS: certificate }) }
  const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', script], { env })
  return stdout.trim()
}

test('a request is sent with a trusted, matching certificate, and not with an untrusted or mismatched one', {
  skip: noOpenssl,
}, async () => {
  assert.equal(await request('localhost', true), '{"ok":true}')
  assert.equal(requests, 1)
  assert.equal(await request('localhost', false), 'NoResponse false', 'not trusted')
  assert.equal(await request('127.0.0.1', true), 'NoResponse false', 'name mismatch')
  assert.equal(requests, 1)
})
