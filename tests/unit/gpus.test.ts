// What the driver of NVIDIA's GPUs says, read as it is written, and nothing where there is no driver or it fails.
import assert from 'node:assert/strict'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { readNvidiaGpus } from '../../lib/nvidia-gpus.ts'
import { usableMemory } from '../../lib/usable-memory.ts'
import { trainingMachine } from '../../server/features/hub/methods.ts'
import { createGpus } from '../../server/features/machine/gpus.ts'

const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-gpus-'))
after(() => rmSync(folder, { recursive: true }))
const devices = path.join(folder, 'dev')
mkdirSync(devices)
writeFileSync(path.join(devices, 'nvidia0'), '')
const none = path.join(folder, 'none')
mkdirSync(none)

function driver(name: string, script: string): string {
  const file = path.join(folder, name)
  writeFileSync(file, `#!/bin/sh\n${script}\n`)
  chmodSync(file, 0o700)
  return file
}
const lines =
  '0, GPU-8a, NVIDIA H100 80GB HBM3, 81559, 1024, 80535, 17\n1, GPU-9b, NVIDIA GB10, [N/A], [N/A], [N/A], [N/A]'
const two = driver('two', `cat <<'END'\n${lines}\nEND`)

test('each GPU has its name, its memory and how busy it is; figures that are unknown are null', async () => {
  assert.deepEqual(await createGpus(() => readNvidiaGpus(two, devices))(), [
    { name: 'NVIDIA H100 80GB HBM3', memory_bytes: 81559 * 2 ** 20, used_bytes: 1024 * 2 ** 20, busy_percent: 17 },
    { name: 'NVIDIA GB10', memory_bytes: null, used_bytes: null, busy_percent: null },
  ])
  const [first] = (await readNvidiaGpus(two, devices))!
  assert.deepEqual(
    [first!.index, first!.uuid, first!.free_bytes, first!.utilization],
    [0, 'GPU-8a', 80535 * 2 ** 20, 0.17],
  )
})

test('a machine without a GPU is told from one whose driver does not answer', async () => {
  assert.deepEqual(await readNvidiaGpus(two, none), [])
  for (const broken of [driver('failing', 'echo broken; exit 9'), path.join(folder, 'nothing')]) {
    assert.equal(await readNvidiaGpus(broken, devices), undefined)
    assert.deepEqual(await createGpus(() => readNvidiaGpus(broken, devices))(), [])
  }
})

test('training has the memory of the smallest GPU, and that of the machine where no driver reports one', async () => {
  const small = driver('small', "echo '0, GPU-1, A, 24000, 0, 0, 0'; echo '1, GPU-2, B, 16000, 0, 0, 0'")
  const { device, memory_bytes } = await trainingMachine(() => readNvidiaGpus(small, devices))
  assert.deepEqual([device, memory_bytes], ['gpu', 16000 * 2 ** 20])
  assert.equal((await trainingMachine(() => readNvidiaGpus(two, devices))).memory_bytes, usableMemory())
  const cpu = await trainingMachine(() => readNvidiaGpus(two, none))
  assert.deepEqual([cpu.device, cpu.memory_bytes], ['cpu', usableMemory()])
})
