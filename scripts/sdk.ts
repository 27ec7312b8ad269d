// Packs the client library into a folder: `scripts/node scripts/sdk.ts FOLDER`.
import { execFileSync } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync } from 'node:fs'
import os from 'node:os'
import path from 'node:path'
import { build } from 'tsdown'
import { root } from '../lib/root.ts'

const target = path.resolve(process.argv[2] ?? '.')
const folder = mkdtempSync(path.join(os.tmpdir(), 'tunery-pack-'))
try {
  await build({
    cwd: path.join(root, 'sdk'),
    config: false,
    entry: ['index.ts'],
    outDir: path.join(folder, 'dist'),
    platform: 'neutral',
    target: 'es2022',
    dts: true,
    fixedExtension: false,
    logLevel: 'error',
  })
  for (const name of ['package.json', 'README.md']) cpSync(path.join(root, 'sdk', name), path.join(folder, name))
  cpSync(path.join(root, 'LICENSE'), path.join(folder, 'LICENSE'))
  const packed = execFileSync('npm', ['pack', '--pack-destination', target, '--json'], {
    cwd: folder,
    encoding: 'utf8',
  })
  console.log(path.join(target, (JSON.parse(packed) as { filename: string }[])[0]!.filename))
} finally {
  rmSync(folder, { recursive: true, force: true })
}
