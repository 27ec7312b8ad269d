import assert from 'node:assert/strict'
import { mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createSecrets } from '../../server/platform/storage/secrets.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-secrets-'))
after(() => rmSync(folder, { recursive: true }))
const file = path.join(folder, 'secret.key')

test('an encrypted secret can be decrypted after a restart, only for its own row, and hides its text', () => {
  const sealed = createSecrets(file).encrypt('whsec_canary', 'whk_1')
  assert.ok(!sealed.includes('canary'))
  assert.equal(statSync(file).mode & 0o777, 0o600)
  const again = createSecrets(file)
  assert.equal(again.decrypt(sealed, 'whk_1'), 'whsec_canary')
  assert.notEqual(again.encrypt('whsec_canary', 'whk_1'), sealed)
  assert.throws(() => again.decrypt(sealed, 'whk_2'))
})

test('altered secrets and those of another key are refused, and a damaged key is reported', () => {
  const secrets = createSecrets(file)
  const sealed = secrets.encrypt('x', 'whk_1')
  assert.throws(() => secrets.decrypt(sealed.slice(0, -2) + (sealed.endsWith('AA') ? 'BB' : 'AA'), 'whk_1'))
  assert.throws(() => createSecrets(path.join(folder, 'other.key')).decrypt(sealed, 'whk_1'), /another key/)
  writeFileSync(path.join(folder, 'short.key'), 'x')
  assert.throws(() => createSecrets(path.join(folder, 'short.key')), /1 bytes, not the 32/)
})
