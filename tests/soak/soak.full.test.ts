// Short form of `npm run test:soak`.
import assert from 'node:assert/strict'
import { mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { soak } from './soak.ts'

test('nothing acknowledged under load is lost over eight kills of server, engine and trainer', async () => {
  const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-soak-'))
  try {
    const { faults, counts } = await soak({ folder, seed: 5, kills: 8, verifyEach: 8, report() {} })
    assert.deepEqual(faults, [])
    assert.ok(counts.answer! > 0 && counts.dataset! > 0 && counts.key! > 0, JSON.stringify(counts))
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
})
