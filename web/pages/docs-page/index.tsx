// One page of the docs, from a Markdown file of the project.

import { type DocContent, groups, pages } from 'virtual:docs'
import { useQuery } from '@tanstack/react-query'
import { Link, useParams, useRouter, useRouterState } from '@tanstack/react-router'
import { ArrowLeft, ArrowRight } from 'lucide-react'
import { type MouseEvent, useEffect, useMemo } from 'react'
import { classes } from '../../lib/classes.ts'
import { copyText, LinkButton } from '../../ui/button.tsx'
import { ErrorState, SkeletonLines } from '../../ui/feedback.tsx'
import { Page } from '../../ui/layout.tsx'
import { Contents } from './contents.tsx'
import './prose.css'

export default function DocsPage() {
  const slug = useParams({ strict: false, select: ({ _splat }) => (_splat ?? '').replace(/\/$/, '') })
  // Links of other sites, and of those who type: the file's own name.
  const page = pages[slug] ?? pages[slug.replace(/\.md$/, '')]
  const content = useQuery({
    queryKey: ['docs', slug],
    queryFn: () => page!.load(),
    enabled: page !== undefined,
    staleTime: Number.POSITIVE_INFINITY,
  })
  if (!page)
    return (
      <Page title="There is no such page" width="narrow">
        <p className="mb-4 text-muted">It may have moved. The search, opened by the key /, finds it by its words.</p>
        <LinkButton to="/docs/$" params={{ _splat: 'overview' }} variant="primary">
          All pages
        </LinkButton>
      </Page>
    )
  if (content.isError) return <ErrorState error={content.error} retry={() => location.reload()} />
  if (!content.data)
    return (
      <div className="mx-auto max-w-3xl px-6 py-8">
        <SkeletonLines lines={8} />
      </div>
    )
  return <Content key={slug} slug={slug} content={content.data} />
}

function Content({ slug, content }: { slug: string; content: DocContent }) {
  const router = useRouter()
  const headings = useMemo(() => content.headings.filter(({ level }) => level <= 3), [content])
  const hash = useRouterState({ select: ({ location }) => location.hash })

  useEffect(() => {
    document.title = `${content.title} · Tunery docs`
  }, [content])
  useEffect(() => {
    if (hash) document.getElementById(decodeURIComponent(hash))?.scrollIntoView()
  }, [hash])

  /** Links between pages do not reload the page, and every block of code can be copied. */
  const onClick = (event: MouseEvent<HTMLElement>) => {
    const target = event.target as Element
    const button = target.closest<HTMLButtonElement>('button[data-copy]')
    if (button) return void copyBlock(button)
    const link = target.closest<HTMLAnchorElement>('a[href^="/docs"]')
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return
    event.preventDefault()
    router.history.push(link.getAttribute('href')!)
  }
  return (
    <div className="flex items-start">
      <div
        className={classes(
          'mx-auto w-full min-w-0 px-4 py-6 sm:px-8 sm:py-8',
          // A page without parts is a list to look something up in.
          headings.length < 2 ? 'max-w-5xl' : 'max-w-3xl',
        )}
      >
        {/* biome-ignore lint/a11y/useKeyWithClickEvents: links and buttons inside take the keys themselves */}
        <article
          className="prose"
          onClick={onClick}
          // biome-ignore lint/security/noDangerouslySetInnerHtml: made from the project's own files at build
          dangerouslySetInnerHTML={{ __html: content.html }}
        />
        <Neighbours slug={slug} />
      </div>
      <Contents headings={headings} />
    </div>
  )
}

async function copyBlock(button: HTMLButtonElement): Promise<void> {
  const code = button.nextElementSibling?.textContent ?? ''
  const label = await copyText(code).then(
    () => 'Copied',
    () => 'Not allowed here: select the text',
  )
  button.setAttribute('aria-label', label)
  button.dataset.copy = label
  setTimeout(() => {
    button.setAttribute('aria-label', 'Copy code')
    button.dataset.copy = ''
  }, 2000)
}

/** The pages before and after this one. */
function Neighbours({ slug }: { slug: string }) {
  const all = groups.flatMap((group) => group.pages)
  const at = all.findIndex((page) => page.slug === slug)
  if (at < 0) return null
  const before = all[at - 1]
  const after = all[at + 1]
  const linkClass = 'rounded-lg px-4 py-3 ring-1 ring-line hover:bg-hover'
  return (
    <nav aria-label="Next pages" className="mt-12 grid gap-3 sm:grid-cols-2">
      {before ? (
        <Link to="/docs/$" params={{ _splat: before.slug }} className={linkClass}>
          <span className="flex items-center gap-1 text-sm text-muted">
            <ArrowLeft aria-hidden className="size-3.5" /> Before
          </span>
          <span className="font-medium">{before.title}</span>
        </Link>
      ) : (
        <span className="max-sm:hidden" />
      )}
      {after && (
        <Link to="/docs/$" params={{ _splat: after.slug }} className={`${linkClass} sm:text-right`}>
          <span className="flex items-center gap-1 text-sm text-muted sm:justify-end">
            Next <ArrowRight aria-hidden className="size-3.5" />
          </span>
          <span className="font-medium">{after.title}</span>
        </Link>
      )}
    </nav>
  )
}
