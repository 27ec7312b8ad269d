// `npm run test:families [-- NAME…]`: takes a tiny checkpoint of each family of models the whole way through a real
// service, and writes what came of it into docs/reference/families.json and families.md (table.ts).
import { execFile, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { createInterface } from 'node:readline'
import { parseArgs, promisify } from 'node:util'
import type { FamilyTrial } from '../../contract/families.ts'
import type { Job } from '../../contract/fine-tuning.ts'
import type { TunedModel } from '../../contract/models.ts'
import { root } from '../../lib/root.ts'
import { client, colourRows } from '../support/client.ts'
import { type Color, dataUrl, disk } from '../support/pictures.ts'
import { dataFolder } from '../support/server.ts'
import { emptyRows, type Row, writeRows } from './table.ts'

const run = promisify(execFile)
const python = path.join(root, '.local/python/bin/python')
const { positionals } = parseArgs({ allowPositionals: true })
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-families-'))
const models = path.join(folder, 'models')

/** How many families are tried at a time. */
const lanes = 2
const training_config = { epochs: 12, batch_size: 4, learning_rate: 0.02 }
/** Whether it can be trained at all is seen by a few steps. */
const briefly = { epochs: 1, batch_size: 8, learning_rate: 0.002 }

/** Lets the programs of the trainer run as forks of one process (forks/server.py). */
async function startForks(): Promise<void> {
  const socket = path.join(folder, 'forks')
  const server = spawn(python, ['tests/families/forks/server.py', socket], {
    cwd: root,
    env: { ...process.env, OMP_NUM_THREADS: '1' },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  for await (const line of createInterface({ input: server.stdout })) if (line === 'ready') break
  if (server.exitCode !== null) throw new Error('what forks the trainer has ended')
  Object.assign(process.env, { FORKS: socket, PYTHONPATH: path.join(root, 'tests/families/forks') })
}

const pythonJson = async (...words: string[]) =>
  JSON.parse((await run(python, words, { cwd: root })).stdout.trim().split('\n').at(-1)!)

/** The last line of what a program said, without paths and ids of this run. */
function sentence(text: string): string {
  const last = text.trim().split('\n').at(-1)!.replaceAll(folder, '')
  return last
    .replace(/^test\/\w+ could not be added: /, '')
    .replaceAll(/test\/\w+/g, 'the base')
    .slice(0, 400)
}

const problemOf = (error: unknown) => {
  const { stderr, message } = error as { stderr?: string; message: string }
  return sentence(stderr || (message.startsWith('{"error"') ? JSON.parse(message).error.message : message))
}

await startForks()
const known: string[] = await pythonJson('-m', 'tests.families.checkpoints', '--list')
const waiting = positionals.length > 0 ? positionals : [...known]
emptyRows(waiting, known)
const data = dataFolder('families', {
  TUNERY_MODELS_DIR: models,
  TUNERY_TRAINING_PRIORITY: 'normal',
  TUNERY_KEEP_ORIGINAL_WEIGHTS: 'true',
  TUNERY_MERGED_MEMORY_MB: '0',
  TUNERY_LOG_LEVEL: 'error',
})
process.on('exit', () => {
  data.remove()
  rmSync(folder, { recursive: true, force: true })
})
process.on('SIGTERM', () => process.exit(1))
const server = await data.start()
const { api, upload, untilEnded, exported } = client(server.url, data.key())
const dataset_id = (await upload(colourRows(16))).body.id

/** A family on its way through the service. */
class Attempt {
  readonly row: Row = {}
  /** The time of each cell. */
  readonly seconds: Partial<Record<string, number>> = {}
  private readonly name: string
  private readonly id: string
  private readonly base: string

  constructor(name: string) {
    this.name = name
    this.id = `test/${name}`
    this.base = path.join(models, this.id)
  }

  /** Fills the row, as far as it comes. */
  async run(): Promise<Row> {
    await this.cell('added', () => this.add())
    const described = path.join(this.base, 'model.json')
    const added = existsSync(described)
    const light = path.join(folder, `${this.name}-light`)
    Object.assign(
      this.row,
      await pythonJson('-m', 'tests.families.cells', this.name, light, ...(added ? [described] : [])).catch(
        (error) => ({ packing: problemOf(error) }),
      ),
    )
    rmSync(light, { recursive: true, force: true })
    if (!added) return this.row
    const template = ['tests/families/template.ts', path.join(this.base, 'model.gguf')]
    const { stdout } = await run(process.execPath, template, { cwd: root })
    Object.assign(this.row, JSON.parse(stdout))
    const { kind, blind, expert_weights } = JSON.parse(readFileSync(described, 'utf8'))
    await this.cell('pictures', async () => {
      if (blind) return `It reads no pictures: ${blind}.`
      return kind === 'vision' ? await this.sees() : 'none'
    })
    await this.train()
    const others = { qlora: { method: 'qlora' }, full: { method: 'full' }, experts: { lora_config: { experts: true } } }
    for (const [column, config] of Object.entries(others))
      await this.cell(column as FamilyTrial, async () => {
        if (column === 'experts' && !expert_weights) return 'none'
        const job = await this.job({ ...config, training_config: briefly })
        return typeof job === 'string' || !job.model ? this.endOf(job) : await this.served(job.model)
      })
    rmSync(this.base, { recursive: true, force: true })
    return this.row
  }

  private async cell(column: FamilyTrial, result: () => Promise<string>): Promise<void> {
    this.row[column] = await this.timed(column, () => result().catch(problemOf))
  }

  private async timed<T>(column: FamilyTrial, work: () => Promise<T>): Promise<T> {
    const started = performance.now()
    const result = await work()
    this.seconds[column] = Math.round((performance.now() - started) / 1000)
    return result
  }

  private async add(): Promise<string> {
    const checkpoint = path.join(folder, this.name)
    await run(python, ['-m', 'tests.families.checkpoints', folder, this.name], { cwd: root })
    try {
      const env = { ...process.env, TUNERY_MODELS_DIR: models }
      await run(path.join(root, 'tunery'), ['models', 'add', this.id, '--from', checkpoint], { env })
      return 'yes'
    } finally {
      rmSync(checkpoint, { recursive: true, force: true })
    }
  }

  /** Trains an adapter, and does with it what people do. */
  private async train(): Promise<void> {
    const job = await this.timed('lora', () => this.job({ lora_config: { experts: false }, training_config }))
    this.row.lora = this.endOf(job)
    if (typeof job === 'string' || !job.model) return
    const { model } = job
    await this.cell('served', () => this.served(model))
    await this.cell('asked', async () => {
      const messages = [{ role: 'user', content: 'code of blue?' }]
      const { status, body } = await api('POST', '/chat/completions', {
        model,
        messages,
        max_tokens: 8,
        temperature: 0,
      })
      return status === 200 ? 'yes' : body.error.message
    })
    await this.cell('peft', () => this.export({ model, format: 'huggingface', merge: false }))
    await this.cell('adapter_gguf', () => this.export({ model, format: 'gguf', merge: false }))
    await this.cell('gguf', () => this.export({ model, format: 'gguf', quantization: 'F16' }))
    // The export is asked in the engine, as a merged adapter is.
    this.row.merged = this.row.gguf!
    await this.cell('huggingface', () => this.export({ model, format: 'huggingface' }))
    await this.cell('onnx', () => this.export({ model, format: 'onnx' }))
  }

  /** Whether the engine answers as the trainer does, by the comparison that ended the job. */
  private async served(model: string): Promise<string> {
    const { comparison }: TunedModel = (await api('GET', `/fine-tuning/models/${model}`)).body
    if (!comparison?.agrees) return sentence(comparison?.problem ?? 'It could not be compared.')
    const described = JSON.parse(readFileSync(path.join(this.base, 'model.json'), 'utf8'))
    return described.merges_adapters ? 'merged only' : 'yes'
  }

  /** Whether the base's answer is about a picture, whose tokens are counted. */
  private async sees(): Promise<string> {
    const answer = async (...colours: Color[]) => {
      const pictures = colours.map((colour) => ({
        type: 'image_url',
        image_url: { url: dataUrl(disk(64, 64, colour)) },
      }))
      const messages = [{ role: 'user', content: [...pictures, { type: 'text', text: 'code of blue?' }] }]
      const request = { model: this.id, messages, max_tokens: 1, temperature: 0, logprobs: true, top_logprobs: 20 }
      const { status, body } = await api('POST', '/chat/completions', request)
      if (status !== 200) throw new Error(body.error.message)
      return { tokens: body.usage.prompt_tokens, said: JSON.stringify(body.choices[0].logprobs) }
    }
    const [none, red, again, blue] = [
      await answer(),
      await answer([255, 0, 0]),
      await answer([255, 0, 0]),
      await answer([0, 0, 255]),
    ]
    // A picture is shown with 4 tokens or more, and marks around them.
    if (red.tokens < none.tokens + 4) return 'The tokens of a picture are not counted.'
    if (red.said !== again.said) return 'Answers to one picture differ.'
    return red.said === blue.said ? 'Answers do not depend on the picture.' : 'yes'
  }

  /** A job that has ended, or why there is none. */
  private async job(config: object): Promise<Job | string> {
    const { status, body } = await api('POST', '/fine-tuning/jobs', { model_id: this.id, dataset_id, config })
    return status === 201 ? await untilEnded(body.id) : sentence(body.error.message)
  }

  private endOf(job: Job | string): string {
    if (typeof job === 'string') return job
    return job.status === 'completed' ? 'yes' : sentence(job.error?.message ?? job.status)
  }

  private async export(body: object): Promise<string> {
    const { id, status, check, error } = await exported(body)
    await api('DELETE', `/exports/${id}`)
    if (status === 'ready') return check?.agrees === false ? sentence(check.problem!) : 'yes'
    return sentence(error?.message ?? status)
  }
}

await Promise.all(
  Array.from({ length: lanes }, async () => {
    for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) {
      const started = performance.now()
      const attempt = new Attempt(name)
      await attempt.run().catch((error) => console.log(`${name}: ${(error as Error).stack}`))
      writeRows({ [name]: attempt.row }, known)
      const cells = Object.entries(attempt.row).map(([column, cell]) => `${column}: ${cell}`)
      const seconds = ((performance.now() - started) / 1000).toFixed(0)
      console.log(`${name} (${seconds} s: ${JSON.stringify(attempt.seconds)})\n  ${cells.join('\n  ')}`)
    }
  }),
)
process.exit(0)
