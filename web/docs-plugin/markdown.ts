// One Markdown file of the docs as HTML. No inline styles and no scripts: the page's policy forbids them.
import hljs from 'highlight.js/lib/core'
import bash from 'highlight.js/lib/languages/bash'
import javascript from 'highlight.js/lib/languages/javascript'
import json from 'highlight.js/lib/languages/json'
import nginx from 'highlight.js/lib/languages/nginx'
import python from 'highlight.js/lib/languages/python'
import typescript from 'highlight.js/lib/languages/typescript'
import yaml from 'highlight.js/lib/languages/yaml'
import MarkdownIt from 'markdown-it'

for (const [name, language] of Object.entries({ bash, javascript, json, nginx, python, typescript, yaml }))
  hljs.registerLanguage(name, language)

export interface Heading {
  level: number
  text: string
  /** Its anchor, as GitHub makes it: the same link works there. */
  id: string
}

/** The text below a heading, for the search. The first one of a page stands below its title. */
interface Section {
  heading: string
  id: string
  text: string
}

export interface Rendered {
  title: string
  html: string
  /** Without the title. */
  headings: Heading[]
  sections: Section[]
}

/** What the addresses of a page become. Each throws, or returns undefined, where there is nothing at the address. */
export interface Resolve {
  /** The address on the site; undefined: it is a file that the site does not show, and its text is no link. */
  link(href: string): string | undefined
  image(src: string): { src: string; dark?: string; width: number; height: number }
}

const escapeHtml = (text: string) =>
  text.replace(/[&<>"]/g, (character) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[character]!)

/** The anchors of one page's headings, by GitHub's rule. */
export function createSlugs(): (text: string) => string {
  const used = new Map<string, number>()
  return (text) => {
    const slug = text
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\p{M}_\- ]/gu, '')
      .replaceAll(' ', '-')
    const count = used.get(slug) ?? 0
    used.set(slug, count + 1)
    return count === 0 ? slug : `${slug}-${count}`
  }
}

const language = (info: string) => {
  const name = info.trim().split(/\s/)[0]!
  return hljs.getLanguage(name) ? name : undefined
}

function highlight(code: string, info: string): string {
  const name = language(info)
  return name ? hljs.highlight(code, { language: name }).value : escapeHtml(code)
}

function codeBlock(code: string, info: string): string {
  return (
    `<div class="code-frame"><button type="button" data-copy aria-label="Copy code"></button>` +
    `<pre tabindex="0"><code>${highlight(code.trimEnd(), info)}\n</code></pre></div>\n`
  )
}

type Token = ReturnType<InstanceType<typeof MarkdownIt>['parse']>[number]
const attribute = (token: Token, name: string) => String(token.attrGet(name) ?? '')
const isCode = (token: Token) => token.type === 'fence' || token.type === 'code_block'

/** The text that a reader sees of inline Markdown, without its marks. */
const plain = (inline: Token): string =>
  (inline.children ?? [])
    .map((child) => (child.type === 'softbreak' || child.type === 'hardbreak' ? ' ' : child.content))
    .join('')

export function renderMarkdown(source: string, resolve: Resolve): Rendered {
  const markdown = new MarkdownIt({ html: false, linkify: false, typographer: false })
  const { rules } = markdown.renderer
  const textOnly: boolean[] = []

  rules.fence = (tokens, index) => codeBlock(tokens[index]!.content, tokens[index]!.info)
  rules.code_block = (tokens, index) => codeBlock(tokens[index]!.content, '')
  rules.table_open = () => '<div class="table-frame" tabindex="0"><table>\n'
  rules.table_close = () => '</table></div>\n'
  // Alignment is an inline style otherwise.
  for (const name of ['th_open', 'td_open'])
    rules[name] = (tokens, index) => {
      const side = /text-align:(\w+)/.exec(attribute(tokens[index]!, 'style'))?.[1]
      return `<${tokens[index]!.tag}${side && side !== 'left' ? ` class="${side}"` : ''}>`
    }
  rules.link_open = (tokens, index) => {
    const href = resolve.link(attribute(tokens[index]!, 'href'))
    textOnly.push(href === undefined)
    if (href === undefined) return ''
    const away = /^https?:/.test(href) ? ' target="_blank" rel="noreferrer"' : ''
    return `<a href="${escapeHtml(href)}"${away}>`
  }
  rules.link_close = () => (textOnly.pop() ? '' : '</a>')
  rules.image = (tokens, index) => {
    const token = tokens[index]!
    const { src, dark, width, height } = resolve.image(attribute(token, 'src'))
    const size = `width="${width}" height="${height}"`
    const rest = `alt="${escapeHtml(token.content)}" ${size} loading="lazy" decoding="async"`
    if (!dark)
      return `<img${/-phone\.\w+$/.test(attribute(token, 'src')) ? ' class="of-phone"' : ''} src="${src}" ${rest}>`
    return `<img class="in-light" src="${src}" ${rest}><img class="in-dark" src="${dark}" ${rest}>`
  }
  rules.heading_open = (tokens, index) => {
    const { tag } = tokens[index]!
    const meta = tokens[index]!.meta as unknown as Heading
    return `<${tag} id="${meta.id}">`
  }
  rules.heading_close = (tokens, index) => {
    const { tag } = tokens[index]!
    const meta = tokens[index]!.meta as unknown as Heading
    if (tag === 'h1') return `</${tag}>\n`
    const name = `Link to ${escapeHtml(meta.text)}`
    return `<a class="anchor" href="#${meta.id}" aria-label="${name}">#</a></${tag}>\n`
  }

  const tokens = markdown.parse(withoutNotes(source), {})
  const slug = createSlugs()
  const headings: Heading[] = []
  const sections: Section[] = []
  tokens.forEach((token, index) => {
    if (token.type === 'heading_open') {
      const text = plain(tokens[index + 1]!)
      const heading = { level: Number(token.tag[1]), text, id: slug(text) }
      headings.push(heading)
      token.meta = heading
      tokens[index + 2]!.meta = heading
      sections.push({ heading: text, id: heading.id, text: '' })
    } else if (sections.length > 0 && tokens[index - 1]?.type !== 'heading_open') {
      const text = token.type === 'inline' ? plain(token) : isCode(token) ? token.content : ''
      if (text) sections.at(-1)!.text += `${text} `
    }
  })
  const [first, ...others] = headings
  if (first?.level !== 1) throw new Error('A page begins with its title: a line of `# Title`.')
  if (others.some(({ level }) => level === 1)) throw new Error('A page has one title.')
  return {
    title: first.text,
    html: markdown.renderer.render(tokens, markdown.options, {}),
    headings: others,
    sections: sections.map((section) => ({ ...section, text: section.text.replace(/\s+/g, ' ').trim() })),
  }
}

/** A page without its comments, each on its own lines: notes to those who edit the file. */
function withoutNotes(source: string): string {
  const text = `\n${source}`
  let [kept, end] = ['', 0]
  for (;;) {
    const from = text.indexOf('\n<!--', end)
    const to = text.indexOf('-->\n', from)
    if (from === -1 || to === -1) return (kept + text.slice(end)).slice(1)
    kept += text.slice(end, from)
    end = to + '-->'.length
  }
}
