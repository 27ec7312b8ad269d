// The blocks of code in README and guides, and which test runs them.
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { root } from '../../lib/root.ts'

export interface CodeBlock {
  language: string
  code: string
  /** Its first line in the file. */
  line: number
}

/** Every page whose code is run. */
export const pages = ['README.md', 'sdk/README.md', ...globSync('docs/guides/*.md', { cwd: root }).sort()]

export function codeBlocks(file: string): CodeBlock[] {
  const text = readFileSync(path.join(root, file), 'utf8')
  return [...text.matchAll(/^```(\w+)\n(.*?)^```/gms)].map((match) => ({
    language: match[1]!,
    code: match[2]!,
    line: text.slice(0, match.index).split('\n').length,
  }))
}

/**
 * The pages that tests/clients/guides.test.ts runs. One thing builds on another: what a guide trains, the next deploys.
 */
export const order = [
  'docs/guides/start.md',
  'docs/guides/prepare-data.md',
  'docs/guides/choose-a-method.md',
  'docs/guides/read-the-curves.md',
  'docs/guides/evaluations.md',
  'docs/guides/deploy.md',
  'docs/guides/command-line.md',
  'docs/guides/limits-and-usage.md',
  'docs/guides/export.md',
  'docs/guides/learn-from-answers.md',
  'docs/guides/sign-in.md',
  'docs/guides/assistants.md',
  'docs/guides/operate.md',
  'docs/guides/scale.md',
  'docs/guides/preference-tuning.md',
  'sdk/README.md',
]

/** Code that tests/clients/guides.test.ts leaves to another test, or to nobody where its program cannot be had. */
const elsewhere: { file: RegExp; code?: RegExp; by: string }[] = [
  {
    file: /README\.md$/,
    code: /npm start/,
    by: 'tests/process/first-minute.full.test.ts, tests/process/demo.full.test.ts',
  },
  { file: /README\.md$/, code: /npm test/, by: 'npm test' },
  { file: /start\.md/, code: /^npm start/, by: 'tests/process/first-minute.full.test.ts' },
  { file: /start\.md/, code: /^export TUNERY/, by: 'tests/clients/guides.test.ts, in its environment' },
  { file: /guides\/operate/, code: /OPERATOR_KEY/, by: 'tests/process/downloads.test.ts' },
  { file: /guides\/operate/, code: /^TUNERY_DATA_DIR=\S+ \.\/tunery restore/, by: 'tests/process/backup.test.ts' },
  { file: /guides\/tinker/, by: 'tests/tinker/test_guide.py' },
  { file: /guides\/reinforcement/, by: 'tests/process/reinforcement.test.ts' },
  { file: /sign-in/, code: /tunery accounts/, by: 'tests/attacks/rights.attack.ts, in its own installation' },
  { file: /learn-from-answers/, code: /^TUNERY_STORE_COMPLETIONS=30 npm start/, by: 'tests/clients/guides.test.ts' },
  { file: /receive-webhooks/, by: 'tests/process/webhook-guide.test.ts' },
  { file: /move-from-openai/, by: 'tests/clients/test_move_guide.py' },
  { file: /run-onnx-in-node/, by: 'tests/clients/onnx.test.ts' },
  { file: /run-gguf/, by: 'tests/peers/llama-guide.test.ts, tests/process/exports-folders.full.test.ts' },
  { file: /run-huggingface/, by: 'tests/peers/vllm-guide.test.ts, tests/process/exports-folders.full.test.ts' },
  { file: /self-host/, code: /^docker/, by: 'nobody: tests/unit/dockerfiles.test.ts reads them' },
  { file: /self-host/, code: /^location/, by: 'nobody: nginx is not run here' },
  { file: /self-host/, code: /^kubectl/, by: 'nobody: no cluster; tests/process/helm.test.ts renders the chart' },
  { file: /self-host/, by: 'tests/process/bundle.full.test.ts, tests/process/deploy.full.test.ts' },
  { file: /from-one-machine-to-a-cluster/, by: 'tests/scale/cluster-guide.test.ts' },
  { file: /guides\/ray\.md/, by: 'nobody as written: tests/scale/ray.test.ts starts its own cluster' },
  { file: /kubernetes\.md/, code: /^(docker|helm|kubectl|head)/, by: 'nobody: there is no cluster here' },
  { file: /kubernetes\.md/, by: 'tests/process/helm.test.ts' },
  { file: /guides\/pictures/, by: 'tests/process/vision.test.ts, on a tiny model' },
  { file: /assistants/, code: /^(claude|codex) /, by: 'nobody: these assistants cannot be had here' },
]

/** Where a block or a command is shown, if not by tests/clients/guides.test.ts. */
export const shownElsewhere = (file: string, code: string): string | undefined =>
  elsewhere.find((rule) => rule.file.test(file) && (rule.code?.test(code) ?? true))?.by
