import path from 'node:path'
import { root } from '../../../lib/root.ts'
import type { Feature } from '../feature.ts'
import { webRoutes } from './routes.ts'

/** The dashboard: the files that set-up built, served at `/`. */
export function createWebFeature(folder = path.join(root, '.local/web')): Feature {
  return { mount: (app) => webRoutes(app, folder) }
}
