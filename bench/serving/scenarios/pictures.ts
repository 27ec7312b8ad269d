// Pictures beside llama-server with --mmproj: time to the first token after a new picture and of a second question
// about it, and output after it; and text alone beside the same language model without a projector.
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { firstTokens, measure, tokensPerSecond } from '../job.ts'
import { text, user } from '../prompts.ts'
import { comparisonRow, interleave, type Row, type Sides } from '../rounds.ts'
import { type Ours, root, type Side, sampling, startLlamaServer, startOurs } from '../servers.ts'

const output = 64
const context = 2048
const slots = 4
/** Token 0 to 16 and those that a vision model adds to the vocabulary: none of them is text. */
const onlyText = {
  logit_bias: Object.fromEntries(
    [
      ...Array.from({ length: 17 }, (_, token) => token),
      ...Array.from({ length: 40 }, (_, index) => 49_152 + index),
    ].map((token) => [String(token), -100]),
  ),
}
const forms = ['q8_0', 'bf16', 'f16']

export async function pictures(rounds: number, report: (row: Row) => void): Promise<void> {
  const folder = mkdtempSync(path.join(tmpdir(), 'tunery-bench-eye-'))
  // One for each first question, of both sides and of the choice of llama-server's form, and one of each side's output.
  const count = 4 * rounds + forms.length + 4
  try {
    const python = path.join(root, '.local/python/bin/python')
    execFileSync(python, ['-m', 'bench.serving.make_eye', folder, String(count)], { cwd: root, stdio: 'pipe' })
    let next = 0
    const newPicture = () => {
      const file = readFileSync(path.join(folder, `${next++}.jpg`))
      return { type: 'image_url', image_url: { url: `data:image/jpeg;base64,${file.toString('base64')}` } }
    }
    const best = await bestForm(folder, newPicture)
    const us = await startEye(folder)
    const them = await startPeer(folder, best)
    try {
      const note = `${them.form}, projector in ${best}`
      await firstPictures({ ours: us, theirs: them }, rounds, newPicture, note, report)
      for (const clients of [1, slots])
        await outputAfter({ ours: us, theirs: them }, rounds, clients, newPicture, note, report)
    } finally {
      await them.stop()
    }
    try {
      await textAlone(us, rounds, report)
    } finally {
      await us.stop()
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

type Picture = { type: string; image_url: { url: string } }

const about = (picture: Picture, question: string, max_tokens: number) => ({
  messages: [{ role: 'user', content: [picture, { type: 'text', text: question }] }],
  ...sampling,
  ...onlyText,
  max_tokens,
})

const firstToken = async (side: Side, body: object) => firstTokens(await measure(side, 1, [body]))[0]!

async function startEye(folder: string): Promise<Ours> {
  const us = await startOurs({ TUNERY_MODELS_DIR: path.join(folder, 'models') })
  us.model = 'eye'
  for (const name of ['eye', 'blind']) await us.service.api('POST', '/deployments/', { name, model: `bench/${name}` })
  return us
}

const startPeer = (folder: string, form: string) =>
  startLlamaServer(slots, context, {
    weights: path.join(folder, 'models/bench/eye/model.gguf'),
    projector: path.join(folder, `mmproj-${form}.gguf`),
  })

/** The type of the projector's weights in which llama-server reads a picture fastest. */
async function bestForm(folder: string, newPicture: () => Picture): Promise<string> {
  const times: [number, string][] = []
  for (const form of forms) {
    const them = await startPeer(folder, form)
    try {
      times.push([await firstToken(them, about(newPicture(), 'What is it?', 1)), form])
    } finally {
      await them.stop()
    }
  }
  console.log(
    `llama-server reads a picture in ${times.map(([ms, form]) => `${Math.round(ms)} ms (${form})`).join(', ')}`,
  )
  return times.toSorted(([one], [other]) => one - other)[0]![1]
}

async function firstPictures(
  sides: Sides<Side>,
  rounds: number,
  newPicture: () => Picture,
  note: string,
  report: (row: Row) => void,
): Promise<void> {
  const second: Sides<number[]> = { ours: [], theirs: [] }
  const figures = await interleave(rounds, sides, async (side) => {
    const picture = newPicture()
    const first = await firstToken(side, about(picture, 'What is in this picture?', 4))
    second[side === sides.ours ? 'ours' : 'theirs'].push(
      await firstToken(side, about(picture, 'And which colour does it have?', 4)),
    )
    return first
  })
  report(comparisonRow('pictures', 'first token after a new picture', 'ms', figures, { most: 1 }, note))
  report(comparisonRow('pictures', 'first token of a second question', 'ms', second, { most: 1 }, note))
}

/** All questions are about one picture, whose prompt both sides have computed in every slot before. */
async function outputAfter(
  sides: Sides<Side>,
  rounds: number,
  clients: number,
  newPicture: () => Picture,
  note: string,
  report: (row: Row) => void,
): Promise<void> {
  const picture = newPicture()
  const bodies = (turn: number) =>
    Array.from({ length: clients }, (_, index) => about(picture, `${text(8, 100 * turn + index)}?`, output))
  for (const side of [sides.ours, sides.theirs]) await measure(side, clients, bodies(999))
  const figures = await interleave(rounds, sides, async (side, turn) =>
    tokensPerSecond(await measure(side, clients, bodies(turn)), output),
  )
  const who = `${clients} client${clients > 1 ? 's' : ''}`
  report(comparisonRow('pictures', `output after a known picture, ${who}`, 'tokens/s', figures, { least: 1 }, note))
}

/** The language model of the vision base and the same one without a projector. */
async function textAlone(us: Ours, rounds: number, report: (row: Row) => void): Promise<void> {
  const sides: Sides<Side> = { ours: us, theirs: { ...us, name: 'without a projector', model: 'blind' } }
  for (const clients of [1, slots]) {
    const bodies = (turn: number) =>
      Array.from({ length: 4 * clients }, (_, index) => ({
        ...user([{ type: 'text', text: text(32, 7_000_000 + 1000 * turn + 100 * clients + index) }]),
        ...sampling,
        ...onlyText,
        max_tokens: output,
      }))
    for (const side of [sides.ours, sides.theirs]) await measure(side, clients, bodies(999))
    const figures = await interleave(rounds, sides, async (side, turn) =>
      tokensPerSecond(await measure(side, clients, bodies(turn)), output),
    )
    const what = `text alone, ${clients} client${clients > 1 ? 's' : ''}; theirs: no projector`
    report(comparisonRow('pictures', what, 'tokens/s', figures, { least: 0.95 }))
  }
}
