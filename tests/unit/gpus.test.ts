// What the driver of NVIDIA's GPUs says, read as it is written, and nothing where there is no driver or it fails.
import assert from 'node:assert/strict'
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { createGpus } from '../../server/machine/gpus.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-gpus-'))
after(() => rmSync(folder, { recursive: true }))
function driver(name: string, script: string): string {
  const file = path.join(folder, name)
  writeFileSync(file, `#!/bin/sh\n${script}\n`)
  chmodSync(file, 0o700)
  return file
}
const gpus = (command: string, device = '/dev/null') => createGpus(device, command)()

test('each GPU has its name, its memory and how busy it is; figures that are unknown are null', async () => {
  const lines = 'NVIDIA H100 80GB HBM3, 81559, 1024, 17\nNVIDIA GB10, [N/A], [N/A], [N/A]'
  assert.deepEqual(await gpus(driver('two', `cat <<'END'\n${lines}\nEND`)), [
    { name: 'NVIDIA H100 80GB HBM3', memory_bytes: 81559 * 2 ** 20, used_bytes: 1024 * 2 ** 20, busy_percent: 17 },
    { name: 'NVIDIA GB10', memory_bytes: null, used_bytes: null, busy_percent: null },
  ])
})

test('there are none without a device, with a driver that fails, or without its program', async () => {
  assert.deepEqual(await gpus(driver('fine', 'echo GPU, 1, 1, 1'), path.join(folder, 'nothing')), [])
  assert.deepEqual(await gpus(driver('failing', 'echo broken; exit 9')), [])
  assert.deepEqual(await gpus(path.join(folder, 'nothing')), [])
})
