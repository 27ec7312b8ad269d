// Start command of the service's image. Copies the image's base models into TUNERY_MODELS_DIR, as the image is
// read-only: `./tunery models add` adds models there, and the engine writes converted copies next to them.
import { cpSync, existsSync, globSync, mkdirSync, renameSync, rmSync } from 'node:fs'
import path from 'node:path'

const bundled = path.resolve(import.meta.dirname, '../.local/models')
const modelsDir = process.env.TUNERY_MODELS_DIR
if (modelsDir && path.resolve(modelsDir) !== bundled)
  // model.json is written last: a folder without one is incomplete.
  for (const file of globSync('*/*/model.json', { cwd: bundled })) {
    const model = path.dirname(file)
    const to = path.join(modelsDir, model)
    if (existsSync(path.join(to, 'model.json'))) continue
    const fresh = `${to}.new`
    rmSync(fresh, { recursive: true, force: true })
    rmSync(to, { recursive: true, force: true })
    mkdirSync(path.dirname(to), { recursive: true })
    cpSync(path.join(bundled, model), fresh, { recursive: true, dereference: true })
    renameSync(fresh, to)
  }
await import('../server/main.ts')
