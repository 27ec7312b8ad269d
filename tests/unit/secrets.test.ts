import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createSecrets } from '../../server/storage/secrets.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-secrets-'))
after(() => rmSync(folder, { recursive: true }))
const file = path.join(folder, 'secret.key')

test('what is sealed opens after a restart, in its place alone, and hides its text', () => {
  const sealed = createSecrets(file).seal('whsec_canary', 'whk_1')
  assert.ok(!sealed.includes('canary'))
  assert.equal(statSync(file).mode & 0o777, 0o600)
  const again = createSecrets(file)
  assert.equal(again.open(sealed, 'whk_1'), 'whsec_canary')
  assert.notEqual(again.seal('whsec_canary', 'whk_1'), sealed)
  assert.throws(() => again.open(sealed, 'whk_2'))
})

test('what was changed, or sealed with another key, is refused, and a damaged key is told', () => {
  const secrets = createSecrets(file)
  const sealed = secrets.seal('x', 'whk_1')
  assert.throws(() => secrets.open(sealed.slice(0, -2) + (sealed.endsWith('AA') ? 'BB' : 'AA'), 'whk_1'))
  assert.throws(() => createSecrets(path.join(folder, 'other.key')).open(sealed, 'whk_1'), /another key/)
  writeFileSync(path.join(folder, 'short.key'), 'x')
  assert.throws(() => createSecrets(path.join(folder, 'short.key')), /32 bytes/)
})
