// The modules of docs-plugin/.
declare module 'virtual:docs' {
  /** Groups in the order of the navigation. A slug is an address below `/docs/`. */
  export const groups: readonly { title: string; pages: readonly { slug: string; title: string }[] }[]
  export const pages: Readonly<Record<string, { title: string; load: () => Promise<DocContent> } | undefined>>
  export interface DocContent {
    title: string
    /** In the project, such as `docs/guides/start.md`. */
    file: string
    /** Without the title. */
    headings: readonly { level: number; text: string; id: string }[]
    html: string
  }
}
declare module 'virtual:docs-search' {
  /** An index of MiniSearch, as text. */
  const index: string
  export default index
}
declare module 'virtual:client-methods' {
  /** Methods of the client library, by method and path, such as `POST /fine-tuning/jobs`. */
  const methods: Readonly<Record<string, { name: string; args: readonly string[] } | undefined>>
  export default methods
}
