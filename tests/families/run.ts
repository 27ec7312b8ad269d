// `npm run test:families [-- NAME…]`: takes a tiny checkpoint of each family of models the whole way through a real
// service: added, trained, deployed unmerged, compared with the trainer, asked.
import { execFile } from 'node:child_process'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { parseArgs, promisify } from 'node:util'
import { root } from '../../lib/root.ts'
import { client, colourRows, until } from '../support/client.ts'
import { dataFolder } from '../support/server.ts'

const run = promisify(execFile)
const python = path.join(root, '.local/python/bin/python')
const { positionals } = parseArgs({ allowPositionals: true })
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-families-'))
const models = path.join(folder, 'models')
process.on('exit', () => rmSync(folder, { recursive: true, force: true }))

/** What a step came to: `yes`, or why not. */
type Row = Record<'added' | 'lora' | 'served' | 'asked', string>

const messageOf = (error: unknown) => {
  const { stderr, message } = error as { stderr?: string; message: string }
  return (stderr || message).trim().split('\n').at(-1)!.slice(0, 300)
}

async function names(): Promise<string[]> {
  if (positionals.length > 0) return positionals
  const program = 'import json, checkpoints; print(json.dumps(list(checkpoints.FAMILIES)))'
  const { stdout } = await run(python, ['-c', program], { cwd: path.join(root, 'tests/families') })
  return JSON.parse(stdout.trim().split('\n').at(-1)!)
}

async function add(name: string): Promise<string> {
  const checkpoint = path.join(folder, name)
  await run(python, ['tests/families/checkpoints.py', folder, name], { cwd: root })
  try {
    await run(path.join(root, 'tunery'), ['models', 'add', `test/${name}`, '--from', checkpoint], {
      env: { ...process.env, TUNERY_MODELS_DIR: models },
    })
    return 'yes'
  } catch (error) {
    return messageOf(error)
  } finally {
    rmSync(checkpoint, { recursive: true, force: true })
  }
}

const rows: Record<string, Row> = {}
const data = dataFolder('families', { TUNERY_MODELS_DIR: models })
const server = await data.start()
const { api, upload, untilEnded } = client(server.url, data.key())
const dataset_id = (await upload(colourRows(16))).body.id
const training_config = { epochs: 4, batch_size: 4, learning_rate: 0.02 }
for (const name of await names()) {
  const started = Date.now()
  const row: Row = { added: await add(name), lora: '', served: '', asked: '' }
  rows[name] = row
  const id = `test/${name}`
  if (existsSync(path.join(models, id, 'model.json'))) {
    const { status, body } = await api('POST', '/fine-tuning/jobs', {
      model_id: id,
      dataset_id,
      config: { training_config },
    })
    const job = status === 201 ? await untilEnded(body.id) : undefined
    row.lora = job?.status === 'completed' ? 'yes' : (job?.error?.message ?? body.error.message)
    if (job?.model) {
      const deployed = await api('POST', '/deployments', { name: name.replaceAll('_', '-'), model: job.model })
      const compared = await until('the comparison', async () => {
        const { comparison } = (await api('GET', `/fine-tuning/models/${job.model}`)).body
        return comparison
      }).catch(() => undefined)
      row.served = compared?.agrees
        ? `yes (${compared.difference.toFixed(3)} of ${compared.change.toFixed(2)} nats)`
        : JSON.stringify(compared ?? deployed.body)
      const asked = await api('POST', '/chat/completions', {
        model: job.model,
        messages: [{ role: 'user', content: 'code of blue?' }],
        max_tokens: 8,
        temperature: 0,
      })
      row.asked = asked.status === 200 ? 'yes' : asked.body.error.message
    }
  }
  console.log(
    `${name} (${((Date.now() - started) / 1000).toFixed(0)} s): ${Object.entries(row)
      .map(([step, result]) => `${step}: ${result}`)
      .join('; ')}`,
  )
}
data.remove()
