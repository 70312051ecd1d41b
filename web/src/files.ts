// Files that are dropped on the page or pasted: the text of those that hold text goes into the field.

/** Bytes of a file that is taken, at most. */
const MOST = 1 << 20;

/** What a file says, as a block of code under its name; null if it holds no text. */
async function quoted(file: File): Promise<string | null> {
  if (file.size > MOST) return null;
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    return null;
  }
  if (text.includes("\0")) return null;
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${file.name}\n${fence}\n${text.replace(/\n$/, "")}\n${fence}\n`;
}

/** Calls `take` with the text of files that are dropped anywhere on the page, where the browser would leave it for them, or
 * pasted into the field, and `refuse` with the names of those that have none. */
export function takeFiles(input: HTMLElement, take: (text: string) => void, refuse: (names: string[]) => void): void {
  const read = async (files: File[]) => {
    const all = await Promise.all(files.map(async (file) => ({ name: file.name, text: await quoted(file) })));
    const text = all.map((one) => one.text ?? "").join("");
    if (text !== "") take(text);
    const others = all.filter((one) => one.text === null).map(({ name }) => name);
    if (others.length > 0) refuse(others);
  };
  const holdsFiles = (data: DataTransfer | null) => data?.types.includes("Files") ?? false;
  for (const name of ["dragover", "drop"] as const) {
    addEventListener(name, (event) => {
      if (!holdsFiles(event.dataTransfer)) return;
      event.preventDefault();
      if (name === "drop") void read([...(event.dataTransfer?.files ?? [])]);
    });
  }
  input.addEventListener("paste", (event) => {
    const data = event.clipboardData;
    // A copied cell of a table is text and a picture: the text is what is meant.
    if (!holdsFiles(data) || data?.types.includes("text/plain")) return;
    event.preventDefault();
    void read([...(data?.files ?? [])]);
  });
}
