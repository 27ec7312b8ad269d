// The pages of the docs site: which files they are, their addresses, how they are grouped, and that every link between
// them leads somewhere.
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { imageSize } from './image-size.ts'
import { type Heading, type Rendered, renderMarkdown } from './markdown.ts'

/** Pages that are no files of docs/, by their path. */
const elsewhere: Record<string, string> = {
  'sdk/README.md': 'guides/client-library',
  'server/README.md': 'server',
  'engine/README.md': 'engine',
  'web/README.md': 'web',
  'SECURITY.md': 'security',
  'CONTRIBUTING.md': 'contributing',
  'CHANGELOG.md': 'changelog',
}
/** Groups the pages, in the order in which the site shows them. */
const overview = 'docs/README.md'
/** The API reference is a separate page, made in the browser. */
const reference = '/docs/api'

export interface DocPage extends Rendered {
  /** Below `/docs/`, such as `guides/start`. */
  slug: string
  /** From the project's folder, such as `docs/guides/start.md`. */
  file: string
  /** Image files by the text that stands for their address in `html`. */
  images: Map<string, string>
}

interface Group {
  title: string
  pages: { slug: string; title: string }[]
}

export interface Site {
  pages: DocPage[]
  groups: Group[]
  /** Links that lead nowhere, each with its file. */
  broken: string[]
  /** Files that links of the pages name and that the site does not show, from the project's folder. */
  named: Set<string>
}

/** The address of a page below `/docs/`. */
function slugOf(file: string): string | undefined {
  if (elsewhere[file]) return elsewhere[file]
  if (file === overview || file === 'README.md' || file === 'docs') return 'overview'
  if (file === 'docs/decisions') return 'overview#decisions'
  if (file === 'docs/reference') return 'overview#reference'
  return /^docs\/(.+)\.md$/.exec(file)?.[1]
}

export function readSite(root: string): Site {
  const files = [...globSync('docs/**/*.md', { cwd: root }), ...Object.keys(elsewhere)]
    .map((file) => file.split(path.sep).join('/'))
    .filter((file) => existsSync(path.join(root, file)))
    .sort()
  const published = new Set(files)
  const broken: string[] = []
  const named = new Set<string>()
  /** Checked when all pages have their anchors. */
  const anchors: { from: string; to: string; id: string }[] = []

  const pages = files.map((file): DocPage => {
    const images = new Map<string, string>()
    const from = path.posix.dirname(file)
    const rendered = renderMarkdown(readFileSync(path.join(root, file), 'utf8'), {
      link(href) {
        if (/^[a-z]+:/.test(href)) return href
        if (href === reference || href.startsWith(`${reference}#`)) return href
        const [target = '', id] = href.split('#')
        const to = target === '' ? file : path.posix.normalize(path.posix.join(from, target)).replace(/\/$/, '')
        const slug = slugOf(to)
        if (published.has(to)) {
          if (id) anchors.push({ from: file, to, id })
          return target === '' ? `#${id}` : `/docs/${slug}${id ? `#${id}` : ''}`
        }
        if (slug && !to.endsWith('.md')) return `/docs/${slug}`
        if (to === 'README.md') return '/docs/overview'
        if (to.startsWith('docs/')) broken.push(`${file}: ${href}`)
        else named.add(to)
        return undefined
      },
      image(src) {
        const image = path.posix.normalize(path.posix.join(from, src))
        const dark = image.replace(/-light\.(\w+)$/, '-dark.$1')
        const put = (name: string) => {
          const mark = `__image_${images.size}__`
          images.set(mark, name)
          return mark
        }
        if (!existsSync(path.join(root, image))) {
          broken.push(`${file}: ${src}`)
          return { src, width: 1, height: 1 }
        }
        const size = imageSize(path.join(root, image))
        const hasDark = dark !== image && existsSync(path.join(root, dark))
        return { src: put(image), ...(hasDark && { dark: put(dark) }), ...size }
      },
    })
    return { ...rendered, slug: slugOf(file)!, file, images }
  })

  const byFile = new Map(pages.map((page) => [page.file, page]))
  for (const { from, to, id } of anchors) if (!hasAnchor(byFile.get(to)!, id)) broken.push(`${from}: ${to}#${id}`)
  return { pages, groups: readGroups(root, pages), broken, named }
}

const hasAnchor = ({ headings, title, sections }: DocPage, id: string) =>
  headings.some((heading: Heading) => heading.id === id) || (title !== '' && sections[0]?.id === id)

/** The groups are the headings of the overview and the links in the lists below them; decisions list themselves. */
function readGroups(root: string, pages: DocPage[]): Group[] {
  const file = path.join(root, overview)
  const groups: Group[] = []
  for (const line of existsSync(file) ? readFileSync(file, 'utf8').split('\n') : []) {
    const heading = /^## (.+)$/.exec(line)
    if (heading) groups.push({ title: heading[1]!, pages: [] })
    const link = /^- \[([^\]]+)\]\(([^)#]+)\)/.exec(line)
    const slug = link && slugOf(path.posix.normalize(path.posix.join('docs', link[2]!)))
    if (slug && pages.some((page) => page.slug === slug)) groups.at(-1)?.pages.push({ slug, title: link[1]! })
  }
  const decisions = pages.filter(({ slug }) => slug.startsWith('decisions/'))
  groups.push({ title: 'Decisions', pages: decisions.map(({ slug, title }) => ({ slug, title })) })
  return groups.filter((group) => group.pages.length > 0)
}
