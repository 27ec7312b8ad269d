// A Vite plugin: docs/*.md as modules. `virtual:docs` lists the pages and loads each from its own file;
// `virtual:docs-search` is the index of the search. A link that leads nowhere is a warning of the build, and fails
// tests/unit/docs-site.test.ts.
import path from 'node:path'
import type { Plugin } from 'vite'
import { readClientMethods } from './client-methods.ts'
import { searchIndex } from './search.ts'
import { readSite, type Site } from './site.ts'

const list = 'virtual:docs'
const search = 'virtual:docs-search'
const clientMethods = 'virtual:client-methods'
const page = 'virtual:docs-page/'
const modules = [list, search, clientMethods]
const text = (value: unknown) => JSON.stringify(value)

export function docs(root: string): Plugin {
  let site: Site | undefined
  const read = () => {
    site ??= readSite(root)
    return site
  }
  return {
    name: 'docs',
    buildStart() {
      site = undefined
      for (const link of read().broken) this.warn(`a link of the docs leads nowhere: ${link}`)
    },
    resolveId: (id) => (modules.includes(id) || id.startsWith(page) ? `\0${id}` : undefined),
    load(id) {
      if (id === `\0${list}`) return listModule(read())
      if (id === `\0${search}`) return `export default ${text(searchIndex(read().pages))}`
      if (id === `\0${clientMethods}`) return `export default ${text(readClientMethods(root))}`
      if (!id.startsWith(`\0${page}`)) return
      const found = read().pages.find(({ slug }) => id === `\0${page}${slug}`)
      if (!found) throw new Error(`There is no page ${id}.`)
      this.addWatchFile(path.join(root, found.file))
      return pageModule(root, found)
    },
    // While `vite web` runs, a page that is saved is shown again.
    handleHotUpdate({ file, server }) {
      if (!file.endsWith('.md')) return
      site = undefined
      server.moduleGraph.invalidateAll()
      server.ws.send({ type: 'full-reload' })
      return []
    },
  }
}

const listModule = ({ pages, groups }: Site) =>
  `export const groups = ${text(groups)}
export const pages = {${pages
    .map(
      ({ slug, title }) =>
        `${text(slug)}: { title: ${text(title)}, load: () => import(${text(page + slug)}).then((it) => it.default) }`,
    )
    .join(',\n')}}`

function pageModule(root: string, { title, html, headings, images, file }: Site['pages'][number]): string {
  const imports = [...images].map(([mark, name]) => `import ${mark} from ${text(path.join(root, name))}`)
  const parts = html.split(/(__image_\d+__)/).map((part) => (images.has(part) ? part : text(part)))
  return `${imports.join('\n')}
export default { title: ${text(title)}, file: ${text(file)}, headings: ${text(headings)}, html: ${parts.join(' + ')} }`
}
