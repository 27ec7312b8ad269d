// A base in 16 bits that is added while the service runs: it answers at once, and the making of its eight-bit form may
// be killed, find no space, or not be wanted, without a failed request.
import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import type { Model } from '../../contract/hub.ts'
import { eightBitsFile, readEightBits } from '../../lib/eight-bits.ts'
import { root } from '../../lib/root.ts'
import { until } from '../support/client.ts'
import { children, type DataFolder, dataFolder } from '../support/server.ts'
import { tiny, tinyModelsDir } from '../support/tiny.ts'

const checkpoint = path.join(tinyModelsDir({ hidden_size: 768, intermediate_size: 1024 }), tiny, 'hf')
const folders: string[] = []
const services: DataFolder[] = []
after(() => {
  for (const service of services) service.remove()
  for (const folder of folders) rmSync(folder, { recursive: true, force: true })
})

/** A running service whose models folder is empty. */
async function startEmpty(settings: Record<string, string> = {}) {
  const models = mkdtempSync(path.join(os.tmpdir(), 'tunery-added-'))
  folders.push(models)
  const log = path.join(models, 'log.txt')
  const folder = dataFolder('added', { TUNERY_MODELS_DIR: models, TUNERY_LOG_LEVEL: 'info', ...settings }, { log })
  services.push(folder)
  const server = await folder.start()
  const key = folder.key()
  /** The header of a short answer that says which weights gave it. */
  const weightsOf = async (model: string): Promise<string> => {
    const response = await fetch(`${server.url}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${key}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model, messages: [{ role: 'user', content: 'Hello.' }], max_tokens: 4 }),
    })
    const text = await response.text()
    assert.equal(response.status, 200, text)
    return response.headers.get('x-weights') ?? ''
  }
  return {
    file: (id: string) => path.join(models, id, 'model.gguf'),
    add: (id: string, ...options: string[]) =>
      execFileSync(path.join(root, 'tunery'), ['models', 'add', id, '--from', checkpoint, ...options], {
        env: folder.env,
        stdio: 'pipe',
      }),
    weightsOf,
    cardOf: async (id: string): Promise<Model['weights']> => {
      const response = await fetch(`${server.url}/hub/models/${id}`, { headers: { authorization: `Bearer ${key}` } })
      return ((await response.json()) as Model).weights
    },
    isEightBits: async (id: string) => (await weightsOf(id)).includes('; eight_bits=1'),
    log: () => readFileSync(log, 'utf8'),
    engine: () => children(server.pid, 'engine/main.ts')[0],
    stop: () => server.end('SIGTERM'),
  }
}

const partsBeside = (file: string) => readdirSync(path.dirname(file)).filter((name) => name.endsWith('.part'))

test('a base added while requests run answers from its file at once, later from the copy, and none fails', async () => {
  const service = await startEmpty()
  service.add('test/first')
  assert.equal(await service.isEightBits('test/first'), false, 'the first answer waits for no copy')
  let isOver = false
  let answers = 0
  const clients = [0, 1].map(async () => {
    for (; !isOver; answers++) await service.weightsOf('test/first')
  })
  service.add('test/second')
  assert.equal(await service.isEightBits('test/second'), false, 'the first answer waits for no copy')
  for (const id of ['test/first', 'test/second'])
    await until(`the copy of ${id} to answer`, () => service.isEightBits(id))
  isOver = true
  await Promise.all(clients)
  assert.ok(answers > 0)
  const { distance } = readEightBits(service.file('test/second'))!
  assert.ok(distance.same_top > 0.5)
  assert.deepEqual((await service.cardOf('test/second')).eight_bits?.distance, distance)
  await service.stop()
})

test('an engine killed while it writes the copy leaves nothing broken, and the copy is made again', async () => {
  const service = await startEmpty()
  service.add('test/killed')
  const file = service.file('test/killed')
  assert.equal(await service.isEightBits('test/killed'), false)
  for (const end = performance.now() + 60_000; partsBeside(file).length === 0; ) {
    assert.ok(performance.now() < end, 'the copy is not being written')
    await new Promise((resolve) => setTimeout(resolve, 1))
  }
  const killed = service.engine()!
  process.kill(killed, 'SIGKILL')
  await until('another engine', () => {
    const pid = service.engine()
    return pid !== undefined && pid !== killed
  })
  assert.equal(readEightBits(file), null, 'half a copy counts as one')
  assert.equal(await service.isEightBits('test/killed'), false, 'half a copy answers')
  await until('the copy to answer', () => service.isEightBits('test/killed'))
  assert.deepEqual(partsBeside(file), [])
  await service.stop()
})

test('with too little disk space a base stays on its original, and its card says how much is missing', async () => {
  const service = await startEmpty({ TUNERY_ENGINE_OPTIONS: '--min-free-disk-mb 100000000' })
  service.add('test/full')
  assert.equal(await service.isEightBits('test/full'), false)
  await until('the log to say it', () => /needs \d+ MB of free disk space/.test(service.log()))
  assert.match(service.log(), /a model is served as it is in its file/)
  assert.equal(await service.isEightBits('test/full'), false)
  const { keep_original, eight_bits, eight_bits_problem } = await service.cardOf('test/full')
  assert.deepEqual([keep_original, eight_bits], [false, null])
  assert.match(eight_bits_problem!, /^Its eight-bit form needs \d+ MB of free disk space/)
  assert.ok(!existsSync(eightBitsFile(service.file('test/full'))))
  assert.deepEqual(partsBeside(service.file('test/full')), [])
  await service.stop()
})

test('a base added with `--weights original` keeps it: no copy is begun', async () => {
  const service = await startEmpty()
  service.add('test/kept', '--weights', 'original')
  service.add('test/copied')
  assert.equal(await service.isEightBits('test/kept'), false)
  // Copies are made in the order of the loads: when the second is there, the first would be.
  await service.weightsOf('test/copied')
  await until('the copy of the other base to answer', () => service.isEightBits('test/copied'))
  assert.equal(await service.isEightBits('test/kept'), false)
  assert.ok(!existsSync(eightBitsFile(service.file('test/kept'))))
  const { keep_original, eight_bits, eight_bits_problem } = await service.cardOf('test/kept')
  assert.deepEqual([keep_original, eight_bits, eight_bits_problem], [true, null, null])
  await service.stop()
})
