// Runs the programs of docs/guides/run-onnx-in-node.md on exported folders: Node gives the same answers as Python.
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'

const root = path.resolve(import.meta.dirname, '../..')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-onnx-'))
after(() => rmSync(folder, { recursive: true }))
const guide = readFileSync(path.join(root, 'docs/guides/run-onnx-in-node.md'), 'utf8')
for (const [, name, code] of guide.matchAll(/```js\n\/\/ ([\w.]+)\n([\s\S]*?)```/g))
  writeFileSync(path.join(folder, name!), code!)
symlinkSync(path.join(root, '.local/peers/onnx-node/node_modules'), path.join(folder, 'node_modules'))

const run = promisify(execFile)
const base = path.join(root, '.local/models/HuggingFaceTB/SmolLM2-135M-Instruct/hf')
const question = 'What is the capital of France?'

/** Exports a folder and returns the answers of ONNX Runtime for Python. */
const program = `
import json, sys
from pathlib import Path
from trainer.export.onnx import answers, build, finish
source, out, precision, question = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
if not source.exists():
    from trainer.tests.make_tiny import make_tiny
    make_tiny(source)
graph = out.with_name(f"{out.name}-graph")
build(source, graph, precision, 2, lambda done: None)
finish(source, graph, out, precision, lambda done: None)
rows = [{"messages": [{"role": "user", "content": question}], "answer_tokens": [0]}]
print(json.dumps(answers(out, {"version": 2, "rows": rows}, 2, lambda done: None)[0]))
`
async function exported(
  source: string,
  precision: string,
): Promise<{ out: string; prompt_tokens: number[]; answer_tokens: number[]; answer: string }> {
  const out = path.join(folder, `${path.basename(source)}-${precision}`)
  const { stdout } = await run(
    path.join(root, '.local/python/bin/python'),
    ['-c', program, source, out, precision, question],
    { cwd: root },
  )
  return { out, ...JSON.parse(stdout) }
}
const node = async (file: string, ...args: string[]) =>
  (await run(process.execPath, [path.join(folder, file), ...args], { cwd: folder })).stdout.trim()

for (const precision of ['fp32', 'int8'])
  test(`the default model in ${precision} gives Python’s answers in Transformers.js`, async () => {
    const { out, answer } = await exported(base, precision)
    if (precision === 'fp32') assert.match(answer, /Paris/)
    // In another place, without other files.
    const moved = `${out}-moved`
    cpSync(out, moved, { recursive: true })
    assert.equal(await node('chat.mjs', moved, question), answer)
  })

for (const precision of ['fp32', 'fp16', 'int8', 'int4'])
  test(`onnxruntime-node generates the same tokens in ${precision}, with the KV cache`, async () => {
    const { out, prompt_tokens, answer_tokens } = await exported(path.join(folder, 'tiny'), precision)
    assert.equal(await node('tokens.mjs', out, prompt_tokens.join(',')), answer_tokens.join(','))
  })
